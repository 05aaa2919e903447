//! .npy and .npz files.
