"""What several tests share: gloo ranks, models, and the oracle that pipelines are compared with."""
