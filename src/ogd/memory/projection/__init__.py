"""G, K = G Gᵀ, its pseudo-inverse K⁺, and the projection P = I − Gᵀ K⁺ G."""
