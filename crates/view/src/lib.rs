//! What a program finds when it looks for RDMA devices without calling a verb: the files below
//! `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`, and the addresses that the device
//! answers to.

pub mod hostaddr;
