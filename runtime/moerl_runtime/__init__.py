"""The data plane: trainer, rollout, reward, environment, buffer and the agent in every pod."""
