"""Training with TensorFlow and Keras: ``model.fit`` on two workers, and what a small gradient costs."""
