//! Threads that wait at a descriptor, and objects that another thread destroys meanwhile.
//!
//! A kernel keeps a file for a thread that reads it, also when another thread closes the descriptor: the first stays
//! where it is. Programs rely on it. They destroy a channel, and end with a thread still in `rdma_get_cm_event`
//! (rdma-core's rping). Here the thread may be between its read of the descriptor and the queue beside it, and go back
//! to the read because its event has gone. So the object lives, and its descriptor stays open, until no thread waits.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// How long to wait for a lock that a fork may have left locked: in the child it is never released. No thread holds it
/// for so long otherwise.
pub(crate) const FORKED: Duration = Duration::from_secs(1);

/// The system's number of the calling thread. It is not kept: a forked child's is another.
pub fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The threads that wait at a descriptor. A thread that is cancelled in its wait (pthread_cancel(3)) stays in the list;
/// that the process has no such thread any more tells it from the others.
#[derive(Default)]
pub struct Waiters(Mutex<Vec<u32>>);

impl Waiters {
    /// Note that the calling thread is about to wait: to read 8 bytes from the descriptor. It may never return from
    /// there.
    pub fn enter(&self) {
        self.0.lock().push(this_thread());
    }

    /// Note that the calling thread has waited.
    pub fn leave(&self) {
        let (mut waiters, this) = (self.0.lock(), this_thread());
        if let Some(at) = waiters.iter().position(|thread| *thread == this) {
            waiters.swap_remove(at);
        }
    }

    /// The number of threads that wait.
    pub fn count(&self) -> u32 {
        let Some(mut waiters) = self.0.try_lock_for(FORKED) else { return 0 };
        waiters.retain(|thread| Path::new(&format!("/proc/self/task/{thread}")).exists());
        waiters.len() as u32
    }
}

/// An object that a program waits at.
pub trait Waited {
    /// The descriptor, readable when an event waits. The program may set O_NONBLOCK on it, poll it, add it to epoll.
    fn fd(&self) -> i32;

    /// The threads that wait at it.
    fn waiters(&self) -> &Waiters;
}

/// Objects that were destroyed while threads waited at them.
pub struct Outlived<T>(Mutex<Vec<Arc<T>>>);

impl<T: Waited> Default for Outlived<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Waited> Outlived<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Outlived(Mutex::new(Vec::new()))
    }

    /// Keep an object that is destroyed for as long as threads wait at it. Those that were kept before, and at which no
    /// thread waits any more, are dropped.
    pub fn keep(&self, object: Arc<T>) {
        let Some(mut kept) = self.0.try_lock_for(FORKED) else { return };
        kept.push(object);
        let gone: Vec<Arc<T>> = kept.extract_if(.., |object| object.waiters().count() == 0).collect();
        drop(kept);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    struct Object(Waiters);

    impl Waited for Object {
        fn fd(&self) -> i32 {
            -1
        }

        fn waiters(&self) -> &Waiters {
            &self.0
        }
    }

    #[test]
    fn a_waiter_that_has_ended_is_none() {
        let waiters = Waiters::default();
        std::thread::scope(|scope| scope.spawn(|| waiters.enter()).join().unwrap());
        waiters.enter();
        let until = Instant::now() + Duration::from_secs(10);
        while waiters.count() != 1 {
            assert!(Instant::now() < until, "its thread is joined, and soon is none of the process");
            std::thread::yield_now();
        }
        waiters.leave();
        assert_eq!(waiters.count(), 0);
    }

    #[test]
    fn an_object_lives_until_no_thread_waits_at_it() {
        static OUTLIVED: Outlived<Object> = Outlived::new();
        let object = || Arc::new(Object(Waiters::default()));
        let awaited = object();
        awaited.0.enter();
        let weak = Arc::downgrade(&awaited);
        OUTLIVED.keep(awaited);
        let awaited = weak.upgrade().expect("this thread waits at it");
        OUTLIVED.keep(object());
        assert_eq!(OUTLIVED.0.lock().len(), 1);
        awaited.0.leave();
        drop(awaited);
        OUTLIVED.keep(object());
        assert!(weak.upgrade().is_none() && OUTLIVED.0.lock().is_empty());
    }
}
