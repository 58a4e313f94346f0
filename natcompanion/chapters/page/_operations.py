"""Which operations of torch the runtime of a page has, by its own names for them."""

ONE = (
    "neg abs exp expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid sin cos sign relu floor ceil "
    "trunc isnan clone"
)
TWO = "maximum minimum atan2 flip mm bmm"
NUMBERS = "mul div eq ne lt le gt ge remainder"
OTHERS = {
    "add 3": "add.Tensor add.Scalar",
    "addmm 5": "addmm.default",
    "amax 3": "amax.default max.default",
    "amin 3": "amin.default min.default",
    "any 3": "any.default any.dim any.dims",
    "argmax 3": "argmax.default",
    "argmin 3": "argmin.default",
    "cat 2": "cat.default",
    "cholesky 2": "linalg_cholesky_ex.default",
    "cholesky_solve 3": "cholesky_solve.default",
    "clamp 3": "clamp.default clamp.Tensor",
    "copy_ 2": "copy_.default",
    "cumsum 2": "cumsum.default",
    "diagonal 4": "diagonal.default",
    "eigh 3": "_linalg_eigh.default",
    "expand 2": "expand.default",
    "gather 3": "gather.default",
    "index 2": "index.Tensor",
    "index_put 4": "index_put.default",
    "index_select 3": "index_select.default",
    "inv 1": "linalg_inv_ex.default",
    "log_softmax 3": "_log_softmax.default",
    "logical_and 2": "logical_and.default bitwise_and.Tensor",
    "logical_not 1": "logical_not.default bitwise_not.default",
    "logical_or 2": "logical_or.default bitwise_or.Tensor",
    "mean 3": "mean.default mean.dim",
    "permute 2": "permute.default",
    "pow 2": "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar",
    "prod 3": "prod.default prod.dim_int",
    "qr 1": "linalg_qr.default",
    "scatter_add 4": "scatter_add.default",
    "select 3": "select.int",
    "slice 5": "slice.Tensor",
    "softmax 3": "_softmax.default",
    "solve 2": "_linalg_solve_ex.default",
    "solve_triangular 5": "linalg_solve_triangular.default",
    "split 3": "split_with_sizes.default",
    "squeeze 2": "squeeze.default squeeze.dim squeeze.dims",
    "sub 3": "sub.Tensor sub.Scalar",
    "sum 3": "sum.default sum.dim_IntList",
    "svd 3": "_linalg_svd.default",
    "unsqueeze 2": "unsqueeze.default",
    "view 2": "view.default _unsafe_view.default",
    "where 3": "where.self",
}

NAMES = {
    **{f"aten.{name}.default": (name, 1) for name in ONE.split()},
    **{f"aten.{name}.default": (name, 2) for name in TWO.split()},
    **{f"aten.{name}.Tensor": (name, 2) for name in NUMBERS.split()},
    **{f"aten.{name}.Scalar": (name, 2) for name in NUMBERS.split()},
    **{
        f"aten.{overload}": (key.split()[0], int(key.split()[1]))
        for key, overloads in OTHERS.items()
        for overload in overloads.split()
    },
}
"""The runtime's name of each overload of torch, and how many arguments it heeds. What is not here
stops the build.
"""

RESULTS = {"cholesky": 1, "eigh": 2, "inv": 1, "qr": 2, "solve": 1, "svd": 3}
"""How many of its results the runtime computes, of an operation that has several in torch."""

PLACEMENT = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
"""Arguments that say where and how a tensor is stored; the runtime stores all in float64."""

SAME = ("aten.alias.default", "aten.detach.default")
"""Operations whose result is their argument."""

LIKE = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"
SHAPE_ALONE = tuple(f"aten.{name}." for name in LIKE.split())
"""Operations that take of a tensor its shape, and none of its values."""
