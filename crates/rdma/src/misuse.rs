//! What must not compile. Each case has a twin beside it that differs in the one point and compiles, so that no case
//! passes for another reason.

/// Memory of the caller is registered by an `unsafe` function.
///
/// ```no_run
/// # fn case(pd: &std::sync::Arc<rdma::Pd>, start: std::ptr::NonNull<u8>) {
/// // SAFETY: an empty region has no bytes.
/// let _ = unsafe { pd.reg_mr_caller(start, 0, rdma::Access::empty()) };
/// # }
/// ```
/// ```compile_fail,E0133
/// # fn case(pd: &std::sync::Arc<rdma::Pd>, start: std::ptr::NonNull<u8>) {
/// let _ = pd.reg_mr_caller(start, 0, rdma::Access::empty());
/// # }
/// ```
pub fn registering_is_unsafe() {}

/// Registered memory is not lent out as a slice.
///
/// ```no_run
/// # fn case(mr: &rdma::Mr) {
/// let _byte = mr.load(0);
/// # }
/// ```
/// ```compile_fail,E0608
/// # fn case(mr: &rdma::Mr) {
/// let _byte = mr[0];
/// # }
/// ```
pub fn a_region_is_no_slice() {}

/// A word of a region is not used when the region has ended.
///
/// ```no_run
/// # fn case(mr: std::sync::Arc<rdma::Mr>) {
/// let word = mr.word(0);
/// word.store(1, std::sync::atomic::Ordering::Relaxed);
/// drop(mr);
/// # }
/// ```
/// ```compile_fail,E0505
/// # fn case(mr: std::sync::Arc<rdma::Mr>) {
/// let word = mr.word(0);
/// drop(mr);
/// word.store(1, std::sync::atomic::Ordering::Relaxed);
/// # }
/// ```
pub fn a_word_does_not_outlive_its_region() {}

/// A region is not used when it was deregistered.
///
/// ```no_run
/// # fn case(mr: std::sync::Arc<rdma::Mr>) {
/// let _key = mr.lkey();
/// let _ = rdma::Mr::deregister(mr);
/// # }
/// ```
/// ```compile_fail,E0382
/// # fn case(mr: std::sync::Arc<rdma::Mr>) {
/// let _ = rdma::Mr::deregister(mr);
/// let _key = mr.lkey();
/// # }
/// ```
pub fn a_region_ends_when_it_is_deregistered() {}

/// Inline data live until the post.
///
/// ```no_run
/// # use rdma::*;
/// # fn case(qp: &Qp) {
/// let text = vec![1, 2, 3];
/// let pieces = [&text[..]];
/// let wr = SendWr::new(1, SendOp::Send, Data::Inline(&pieces));
/// let _ = qp.post_send(&wr);
/// drop(text);
/// # }
/// ```
/// ```compile_fail,E0505
/// # use rdma::*;
/// # fn case(qp: &Qp) {
/// let text = vec![1, 2, 3];
/// let pieces = [&text[..]];
/// let wr = SendWr::new(1, SendOp::Send, Data::Inline(&pieces));
/// drop(text);
/// let _ = qp.post_send(&wr);
/// # }
/// ```
pub fn inline_data_live_until_the_post() {}

/// A window and its region live until the bind is posted.
///
/// ```no_run
/// # use rdma::*;
/// # fn case(qp: &Qp, mw: std::sync::Arc<Mw>, mr: &Mr) {
/// let bind = Bind { mw: &mw, rkey: 0, mr, offset: 0, len: 8, access: Access::REMOTE_READ };
/// let _ = qp.bind_mw(1, SendFlags::SIGNALED, &bind);
/// drop(mw);
/// # }
/// ```
/// ```compile_fail,E0505
/// # use rdma::*;
/// # fn case(qp: &Qp, mw: std::sync::Arc<Mw>, mr: &Mr) {
/// let bind = Bind { mw: &mw, rkey: 0, mr, offset: 0, len: 8, access: Access::REMOTE_READ };
/// drop(mw);
/// let _ = qp.bind_mw(1, SendFlags::SIGNALED, &bind);
/// # }
/// ```
pub fn a_window_lives_until_it_is_bound() {}

/// A prepared list is not changed while it is posted.
///
/// ```no_run
/// # use rdma::*;
/// # fn case(qp: &Qp, list: &mut SendList) {
/// let mut request = list.request(0);
/// request.wr_id(1);
/// let _ = qp.post_send_list(list);
/// # }
/// ```
/// ```compile_fail,E0499
/// # use rdma::*;
/// # fn case(qp: &Qp, list: &mut SendList) {
/// let mut request = list.request(0);
/// let _ = qp.post_send_list(list);
/// request.wr_id(1);
/// # }
/// ```
pub fn a_list_is_not_changed_while_it_is_posted() {}

/// Two threads do not post one list: it is borrowed exclusively.
///
/// ```no_run
/// # use rdma::*;
/// # fn case(qp: &Qp, list: &mut RecvList) {
/// let _ = qp.post_recv_list(list);
/// # }
/// ```
/// ```compile_fail,E0308
/// # use rdma::*;
/// # fn case(qp: &Qp, list: &RecvList) {
/// let _ = qp.post_recv_list(list);
/// # }
/// ```
pub fn a_list_is_posted_by_one() {}

/// A descriptor is not used when its channel is gone.
///
/// ```no_run
/// # use std::os::fd::{AsFd, AsRawFd};
/// # fn case(channel: std::sync::Arc<rdma::CompChannel>) {
/// let fd = channel.as_fd();
/// let _number = fd.as_raw_fd();
/// drop(channel);
/// # }
/// ```
/// ```compile_fail,E0505
/// # use std::os::fd::{AsFd, AsRawFd};
/// # fn case(channel: std::sync::Arc<rdma::CompChannel>) {
/// let fd = channel.as_fd();
/// drop(channel);
/// let _number = fd.as_raw_fd();
/// # }
/// ```
pub fn a_descriptor_does_not_outlive_its_channel() {}
