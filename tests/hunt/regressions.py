"""Seeds that were wrong once, by family. Their cases stay right: test_hunt.py tries them again."""

FAILED: dict[str, tuple[int, ...]] = {
    "least squares: constants": (70942, 500658),
    "least squares: gap and f*": (500737, 4442378, 4449594, 4449839),
    "least squares: users' answers": (500223, 500967, 4446106, 4447749, 4447970),
    "logistic minimum with a regulariser": (70031,),
    "logistic minimum without a regulariser": (30000075, 30000205, 30001476),
    "logistic prox on hard data": (70281, 500558, 910116),
}
