//! Rules that show when nothing fails: order, fences, what a post copies, what a datagram brings, atomicity, events.

#[path = "../errors/pair.rs"]
#[allow(dead_code)] // made for other tests too
mod pair;

mod datagrams;
mod events;
mod order;
mod windows;
mod words;
