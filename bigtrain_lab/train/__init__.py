"""The one training loop, what it will hold and cost, and a training that uses all of it."""
