"""Train an agent, see how well it does, film it, and use it.

    python examples/01_train.py [FOLDER]

CartPole-v1 is solved with PPO in seconds on two cores. Workers run as processes of their
own: actors step environments and choose actions, a trainer makes newer weights of what they saw.
Everything that is written lands in FOLDER (default: runs/example_01). The same command again finds
the run there, and goes on where it ended; remove the folder to start anew.
"""

import sys

import gymnasium

import srl

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_01"
    run = srl.train("cartpole", until="return>=475", run_dir=folder)
    print(run.summary.reason, "after", run.summary.env_steps, "environment steps")

    # Whole episodes, without exploration. `evaluate(checkpoint="best")` takes the best weights.
    score = run.evaluate(episodes=20)
    print(f"evaluation: {score.mean:.0f} on average, of 500")

    # An mp4 if imageio-ffmpeg is installed, a GIF if not.
    print("film:", run.play(f"{folder}/cartpole.mp4"))

    # The policy acts on any observation. It may have memory, so tell it when an episode begins.
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=7)
    run.policy.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(run.policy.act(obs))
        total += float(reward)
        over = terminated or truncated
    print(f"one more episode by hand: {total:.0f}")
