"""The numbers, tables and claims of the scoreboard."""
