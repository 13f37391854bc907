"""Random chains, as the planner's own tests draw them: options, pinned stages, zero sizes, gradients of other sizes."""

from hypothesis import strategies as st

import rekindle

SIZES = st.integers(0, 40)
TIMES = st.integers(0, 50)


@st.composite
def stages(draw: st.DrawFn, index: int) -> rekindle.StageProfile:
    output = draw(SIZES)
    forward, backward = draw(TIMES), draw(TIMES)
    options = []
    if draw(st.booleans()):
        options.append(rekindle.TapeOption("light", output + draw(SIZES), forward, backward + draw(TIMES)))
    return rekindle.StageProfile(
        f"stage.{index}",
        output,
        output + draw(SIZES),
        forward,
        backward,
        forward_extra_bytes=draw(SIZES),
        taped_extra_bytes=draw(st.none() | SIZES),
        backward_extra_bytes=draw(SIZES),
        gradient_bytes=draw(st.none() | SIZES),
        parameter_gradient_bytes=draw(st.sampled_from([0, 0, 7])),
        pinned=draw(st.sampled_from([False, False, False, True])),
        options=options,
    )


@st.composite
def profiles(draw: st.DrawFn, most: int = 7) -> rekindle.Profile:
    count = draw(st.integers(1, most))
    return rekindle.Profile("random", "none", draw(SIZES), [draw(stages(index)) for index in range(count)])
