"""Authorisation, consent, approvals and feature flags."""
