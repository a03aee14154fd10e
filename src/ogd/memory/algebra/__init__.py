"""G and K = G Gᵀ: blocks, the store of them, K⁺ in three forms, and the projection P = I − Gᵀ K⁺ G."""
