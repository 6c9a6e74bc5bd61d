//! Engines of several nodes on a virtual clock and a network that loses, repeats and holds back packets by a seed.

mod co_copy;
mod datagrams;
mod errors;
mod fast_path;
mod fast_path_timing;
mod hostile;
mod keys;
mod links;
mod long;
mod managed;
mod managed_here;
mod managed_hostile;
mod managed_orders;
mod managed_quiet;
mod managed_straight;
mod mock;
mod mtu;
mod one_sided;
mod pieces;
mod random;
mod rdmap;
mod reads;
mod recovery;
mod traffic;
mod twins;
mod unproven;
