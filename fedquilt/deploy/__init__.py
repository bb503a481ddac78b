"""From a run's settings to a Flower app, and from the app to a finished run."""
