"""A small order desk with tools that models call: ``python -m examples.order_desk``."""
