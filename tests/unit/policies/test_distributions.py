"""Distributions against torch.distributions, and masks against what they forbid."""

from __future__ import annotations

import pytest
import torch
import torch.distributions as reference

from srl.policies.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical

torch.set_num_threads(1)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_categorical_agrees_with_the_reference() -> None:
    logits, other = torch.randn(2, 5, 3, generator=generator())
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    divergence = reference.kl_divergence(theirs, reference.Categorical(logits=other))
    torch.testing.assert_close(ours.kl(Categorical(other)), divergence)
    assert ours.mode.tolist() == logits.argmax(-1).tolist()


def test_categorical_samples_by_probability() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    drawn = Categorical(probabilities.log().expand(20_000, 3)).sample(generator())
    frequency = torch.bincount(drawn, minlength=3) / len(drawn)
    torch.testing.assert_close(frequency, probabilities, atol=0.02, rtol=0)


def test_equal_generators_draw_equal_samples() -> None:
    distribution = Categorical(torch.zeros(50, 4))
    assert torch.equal(distribution.sample(generator()), distribution.sample(generator()))


def test_forbidden_choices_are_never_drawn_and_cost_no_entropy() -> None:
    mask = torch.tensor([True, False, True, False])
    distribution = Categorical(torch.tensor([0.0, 9.0, 0.0, 9.0]).expand(5000, 4), mask)
    assert set(distribution.sample(generator()).tolist()) == {0, 2}
    assert distribution.mode.unique().tolist() == [0]
    torch.testing.assert_close(distribution.entropy(), torch.full((5000,), 2.0).log())


def test_gradients_stay_finite_under_masks() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    mask = torch.tensor([[True, False, False], [False, False, False]])
    distribution = Categorical(logits, mask)
    (distribution.entropy().sum() + distribution.log_prob(torch.tensor([0, 0])).sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("nvec", [(2, 3), (3, 3)])
def test_multi_categorical_is_a_sum_of_parts(nvec: tuple[int, int]) -> None:
    logits = torch.randn(4, sum(nvec), generator=generator())
    ours = MultiCategorical(logits, nvec)
    parts = [reference.Categorical(logits=part) for part in logits.split(nvec, -1)]
    action = torch.tensor([[0, 2], [1, 0], [1, 1], [0, 0]])
    expected = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(action), expected)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))
    assert ours.sample(generator()).shape == (4, 2)
    assert bool((ours.sample(generator()) < torch.tensor(nvec)).all())


def test_multi_categorical_mask_holds_all_parts_side_by_side() -> None:
    mask = torch.tensor([False, True, True, False, False])
    drawn = MultiCategorical(torch.zeros(100, 5), (2, 3), mask).sample(generator())
    assert drawn.unique(dim=0).tolist() == [[1, 0]]


def test_padding_is_never_drawn_even_if_a_whole_part_is_masked() -> None:
    drawn = MultiCategorical(torch.zeros(500, 5), (2, 3), torch.zeros(5).bool()).sample(generator())
    assert int(drawn[:, 0].max()) == 1


def test_bernoulli_agrees_with_the_reference() -> None:
    logits = torch.randn(6, 3, generator=generator())
    ours, theirs = Bernoulli(logits), reference.Bernoulli(logits=logits)
    action = torch.tensor([[0, 1, 1]] * 6, dtype=torch.int8)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action.float()).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    assert ours.sample(generator()).dtype == torch.int8


def test_bernoulli_mask_has_off_and_on_for_each_switch() -> None:
    mask = torch.tensor([True, False, False, True])
    drawn = Bernoulli(torch.zeros(100, 2), mask).sample(generator())
    assert drawn.unique(dim=0).tolist() == [[0, 1]]


@pytest.mark.parametrize("shape", [(2,), (2, 2), ()])
def test_gaussian_agrees_with_the_reference(shape: tuple[int, ...]) -> None:
    mean, action = torch.randn(2, 5, *shape, generator=generator())
    log_std = torch.full(shape, -0.3)
    ours = DiagGaussian(mean, log_std, len(shape))
    theirs = reference.Independent(reference.Normal(mean, log_std.exp()), len(shape))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    other = reference.Independent(reference.Normal(mean + 1, torch.ones(shape)), len(shape))
    divergence = ours.kl(DiagGaussian(mean + 1, torch.zeros(shape), len(shape)))
    torch.testing.assert_close(divergence, reference.kl_divergence(theirs, other))


def test_gaussian_samples_have_the_right_moments() -> None:
    drawn = DiagGaussian(torch.full((20_000, 1), 3.0), torch.tensor([-1.0])).sample(generator())
    assert float(drawn.mean()) == pytest.approx(3.0, abs=0.02)
    assert float(drawn.std()) == pytest.approx(0.368, abs=0.02)


def test_temperature_is_per_row() -> None:
    rows = torch.tensor([0.0, 1.0]).repeat(500)
    choice = Categorical(torch.tensor([0.0, 0.1]).expand(1000, 2)).sample(generator(), rows)
    assert choice[::2].unique().tolist() == [1]
    assert choice[1::2].unique().tolist() == [0, 1]
    real = DiagGaussian(torch.zeros(1000, 2), torch.zeros(2)).sample(generator(), rows)
    assert not real[::2].any()
    assert real[1::2].all()
    many = MultiCategorical(torch.zeros(1000, 4), (2, 2)).sample(generator(), rows)
    assert many[::2].unique().tolist() == [0]


def test_drawn_actions_come_with_their_own_log_probabilities() -> None:
    rows = torch.tensor([0.0, 0.5, 1.0]).repeat(30)
    for made in (
        Categorical(torch.randn(90, 4, generator=generator())),
        MultiCategorical(torch.randn(90, 5, generator=generator()), (2, 3)),
        Bernoulli(torch.randn(90, 3, generator=generator())),
        DiagGaussian(torch.randn(90, 2, generator=generator()), torch.tensor([-0.5, 0.2])),
    ):
        for temperature in (None, rows):
            action, log_prob = made.draw(generator(), temperature)
            torch.testing.assert_close(action, made.sample(generator(), temperature))
            torch.testing.assert_close(log_prob, made.log_prob(action))
