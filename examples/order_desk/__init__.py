"""A small order desk whose back office is called by models: ``python -m examples.order_desk``."""
