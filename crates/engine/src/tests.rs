//! Engines of several nodes on a virtual clock and a network that loses, repeats and holds back packets by a seed.

mod errors;
mod hostile;
mod links;
mod mock;
mod reach;
mod reads;
mod recovery;
mod traffic;
