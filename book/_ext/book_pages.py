"""Sphinx extension: the one place that knows the repository's address, and small fixes to every
page.

``NATCOMPANION_REPOSITORY`` (for example set by the publishing workflow) is the address of the
repository on its host. With it, pages get repository and Binder buttons. Without it, a page has
none of these buttons. ``NATCOMPANION_BRANCH`` (default ``main``) and ``NATCOMPANION_BINDER``
(default the public Binder) go with it.
"""

import os

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError


def repository_options(environ: dict[str, str]) -> dict:
    """Return the theme options that depend on the repository's address: none when it is not set."""
    url = environ.get("NATCOMPANION_REPOSITORY", "").strip().rstrip("/")
    if not url:
        return {"repository_url": "", "launch_buttons": {}}
    if not url.startswith("https://") or len(url.split("/")) < 5:
        raise ConfigError(f"NATCOMPANION_REPOSITORY: expected https://host/owner/name, got {url!r}")
    return {
        "repository_url": url,
        "repository_branch": environ.get("NATCOMPANION_BRANCH", "main"),
        "repository_provider": "gitlab" if "gitlab" in url else "github",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {
            "notebook_interface": "jupyterlab",
            "binderhub_url": environ.get("NATCOMPANION_BINDER", "https://mybinder.org"),
        },
    }


def set_repository(app: Sphinx, config: Config) -> None:
    """Add the repository's options to those of the theme."""
    config.html_theme_options.update(repository_options(dict(os.environ)))


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.add_config_value(
        "comments_config", {}, ""
    )  # Jupyter Book sets it even when sphinx_comments is not loaded
    app.connect("config-inited", set_repository, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
