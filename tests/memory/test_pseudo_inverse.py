"""P is a projection, the one of a dense QR, also where K is singular."""

import pytest
import torch
from torch import Tensor, nn

from ogd.memory import GradientMemory
from ogd.memory.projection.gram_matrix import assemble_gram
from ogd.memory.projection.pseudo_inverse import (
    Cholesky,
    cholesky,
    coefficients,
    cutoff,
    rank,
    solve,
    whitener,
)
from reference import gram_schmidt, project_dense, project_out, project_softly

N = 6


def matrix(kind: str) -> Tensor:
    torch.manual_seed(1)
    G = torch.randn(N, 9, dtype=torch.float64)
    cases = {
        "independent": G,
        "duplicates": torch.cat([G, G[:3], G[:3]]),
        "combinations": torch.cat([G, G[:2] * 3 - G[2:4]]),
        "zero rows": torch.cat([G, 0 * G[:2]]),
        "all zero": 0 * G,
        "one row": G[:1],
        "empty": G[:0],
        "more rows than columns": torch.randn(15, 9, dtype=torch.float64),
        "very different sizes": G * torch.logspace(-6, 4, N, dtype=torch.float64).unsqueeze(1),
    }
    return cases[kind]


RANKS = {
    "independent": N,
    "duplicates": N,
    "combinations": N,
    "zero rows": N,
    "all zero": 0,
    "one row": 1,
    "empty": 0,
    "more rows than columns": 9,
    "very different sizes": N,
}


def project(G: Tensor, u: Tensor) -> Tensor:
    W = whitener(G @ G.mT, cutoff(len(G), torch.float64))
    return u - G.mT @ coefficients(W, G @ u)


@pytest.mark.parametrize("kind", RANKS)
def test_it_makes_P_a_projection(kind: str) -> None:
    G = matrix(kind)
    u = torch.randn(9, dtype=torch.float64)
    Pu = project(G, u)
    norms = G.norm(dim=1).clamp(min=1e-300)
    assert len(whitener(G @ G.mT, cutoff(len(G), torch.float64))) == RANKS[kind]
    assert rank(G @ G.mT, cutoff(len(G), torch.float64)) == RANKS[kind]
    if len(G):
        assert ((G @ Pu).abs() / norms).max() < 1e-10
        torch.testing.assert_close(Pu, project_dense(G, u), rtol=0, atol=1e-10)
        torch.testing.assert_close(Pu, project_out(gram_schmidt(G), u), rtol=0, atol=1e-10)
    torch.testing.assert_close(project(G, Pu), Pu, rtol=0, atol=1e-10)
    assert u @ Pu >= -1e-12  # the paper's lemma: still a descent direction


SOFTNESS = [1e-8, 1e-4, 0.05, 10.0]


def project_with(known: Cholesky | None, G: Tensor, u: Tensor) -> Tensor:
    assert known is not None
    return u - G.mT @ solve(known, G @ u)


@pytest.mark.parametrize("softness", SOFTNESS)
@pytest.mark.parametrize("kind", [kind for kind in RANKS if kind != "empty"])
def test_a_soft_projection_is_the_dense_one(kind: str, softness: float) -> None:
    G = matrix(kind)
    K, u = G @ G.mT, torch.randn(9, dtype=torch.float64)
    at_once = cholesky(K, softness=softness)
    v = project_with(at_once, G, u)
    torch.testing.assert_close(v, project_softly(G, u, softness), rtol=0, atol=1e-8)
    SG = torch.nn.functional.normalize(G)
    assert (v - u + SG.mT @ (SG @ v) / softness).norm() < 1e-7 * (1 + u.norm() / softness)  # the objective's gradient
    W = whitener(K, cutoff(len(G), torch.float64), softness)
    torch.testing.assert_close(u - G.mT @ coefficients(W, G @ u), v, rtol=0, atol=1e-8)
    known = None
    for n in (1, 2, 4, len(G)):  # task by task
        known = cholesky(K[:n, :n], known, softness)
    torch.testing.assert_close(project_with(known, G, u), v, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in RANKS if kind != "empty"])
def test_the_softer_the_more_is_left_and_the_less_soft_the_more_exact(kind: str) -> None:
    G = matrix(kind)
    u = torch.randn(9, dtype=torch.float64)
    left = [project_with(cholesky(G @ G.mT, softness=mu), G, u) for mu in SOFTNESS]
    sizes = [float(v.norm()) for v in (project(G, u), *left, u)]
    assert sizes == pytest.approx(sorted(sizes), rel=1e-9)
    torch.testing.assert_close(left[0], project(G, u), rtol=0, atol=1e-5)
    bounds = zip(left, SOFTNESS, strict=True)
    assert all((G @ v).norm() <= 0.5 * mu**0.5 * u.norm() * G.norm(dim=1).max() + 1e-9 for v, mu in bounds)


def test_a_stack_projects_softly_as_each_run_alone() -> None:
    G = torch.stack([matrix(kind) for kind in ("independent", "very different sizes", "all zero")])
    G[0, 1] = G[0, 0]
    u, K = torch.randn(3, 9, dtype=torch.float64), G @ G.mT
    for softness in (0.05, (0.05, 0.5, 2.0)):
        known = cholesky(K, cholesky(K[:, :2, :2], softness=softness), softness)
        assert known is not None
        c = solve(known, (G @ u.unsqueeze(-1)).squeeze(-1))
        for r, v in enumerate(u - (G.mT @ c.unsqueeze(-1)).squeeze(-1)):
            mu = softness if isinstance(softness, float) else softness[r]
            torch.testing.assert_close(v, project_softly(G[r], u[r], mu), rtol=0, atol=1e-10)


def test_extend_equals_computing_anew() -> None:
    G = matrix("independent")
    K = assemble_gram(G[:4] @ G[:4].mT, G[4:] @ G[:4].mT, G[4:] @ G[4:].mT)
    torch.testing.assert_close(K, G @ G.mT)


def test_a_stack_projects_each_run_as_if_alone() -> None:
    kinds = ("independent", "very different sizes", "all zero", "independent")
    G = torch.stack([matrix(kind) for kind in kinds]).view(2, 2, N, 9)
    G[0, 0, 1] = G[0, 0, 0]  # one run of a lower rank
    u = torch.randn(2, 2, 9, dtype=torch.float64)
    W = whitener(G @ G.mT, cutoff(N, torch.float64))
    assert rank(G @ G.mT, cutoff(N, torch.float64)).tolist() == [[N - 1, N], [0, N]]
    c = coefficients(W, (G @ u.unsqueeze(-1)).squeeze(-1))
    Pu = u - (G.mT @ c.unsqueeze(-1)).squeeze(-1)
    for i in range(2):
        for j in range(2):
            torch.testing.assert_close(Pu[i, j], project(G[i, j], u[i, j]), rtol=0, atol=1e-10)


def test_float32_cuts_off_what_it_cannot_resolve() -> None:
    G = torch.eye(2, 9, dtype=torch.float64)
    G[1, 0] = 1e6  # a condition of 10⁶
    K = G @ G.mT
    assert len(whitener(K, cutoff(2, torch.float64))) == 2
    assert len(whitener(K, cutoff(2, torch.float32))) == 1


@pytest.mark.parametrize("apart", [1e-5, 1e-6, 3e-7, 1e-8, 0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("later", [False, True], ids=["in one task", "in a second task"])
def test_gradients_that_are_nearly_the_same_stay_protected(apart: float, dtype: torch.dtype, later: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(20, 3).to(dtype), torch.randn(8, 20, dtype=torch.float64)
    near = x + apart * torch.randn(8, 20, dtype=torch.float64)
    u = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    memory = GradientMemory(model, outputs="all")
    for part in (x, near) if later else (torch.cat([x, near]),):
        memory.remember((part.to(dtype), None))
        left = memory.project(u)  # K and its W of the first task are there when the second comes
    G = torch.cat([x, near]).to(dtype).double()
    effects = [G @ v["weight"].double().mT + v["bias"].double() for v in (left, u)]
    assert effects[0].norm() < 1e-5 * effects[1].norm()


def test_cholesky_is_only_for_rows_that_are_far_from_dependent() -> None:
    G, u = matrix("independent"), torch.randn(9, dtype=torch.float64)
    for near in (1e-1, 1e-2, 1e-3):
        K = (H := torch.cat([G, G[:1] + near * G[1:2]])) @ H.mT  # dependent, but for rounding
        assert cholesky(K) is None
        K = (H := torch.cat([G, G[:1] + near * torch.randn(1, 9).double()])) @ H.mT
        torch.testing.assert_close(project_with(cholesky(K), H, u), project_dense(H, u), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("size", "counts"), [(1e-10, True), (1e-11, True), (1e-13, False), (0.0, False)])
def test_a_row_counts_as_zero_only_beside_much_larger_ones(size: float, counts: bool) -> None:
    G = torch.eye(2, 3, dtype=torch.float64) * torch.tensor([[1.0], [size]])
    for scale in (1e-100, 1.0, 1e100):
        assert int(rank(scale * G @ G.mT * scale, cutoff(2, torch.float64))) == 1 + counts


@pytest.mark.parametrize(("dtype", "small", "large"), [(torch.float64, 1e-8, 1e-6), (torch.float32, 1e-6, 1e-4)])
def test_a_direction_that_rounding_cannot_tell_from_the_others_is_dependent(
    dtype: torch.dtype, small: float, large: float
) -> None:
    for angle, expected in ((small, 1), (large, 2)):  # K has the eigenvalues 2 and angle² / 2
        G = torch.tensor([[1.0, 0.0], [1.0, angle]], dtype=torch.float64)
        assert int(rank(G @ G.mT, cutoff(2, dtype))) == expected
        assert len(whitener(G @ G.mT, cutoff(2, dtype))) == expected
