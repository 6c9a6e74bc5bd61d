//! The table of queue pairs, which keeps the fast path's gates up to date.

use verbs::{QpId, limits};

use crate::qp::{Gates, Qp};
use crate::slab::Slab;

/// All queue pairs. [`Qps::get_mut`] and [`Qps::checkout`] take a queue pair for a change and shut its gates
/// ([`Gates`]), so that the fast path computes them anew. Only [`Qps::fast`] leaves the gates as they are.
pub(crate) struct Qps(Slab<QpId, Box<Qp>>);

impl Qps {
    pub fn new() -> Self {
        Qps(Slab::new(limits::MAX_QP))
    }

    /// See [`Slab::insert_with`].
    pub fn insert_with(&mut self, make: impl FnOnce(QpId) -> Box<Qp>) -> Option<QpId> {
        self.0.insert_with(make)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub fn get(&self, id: QpId) -> Option<&Qp> {
        self.0.get(id).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        let qp = self.0.get_mut(id)?;
        qp.gates = Gates::SHUT;
        Some(qp)
    }

    /// Takes a queue pair for changes on which no gate depends: those of the fast path, places in the queues that
    /// become free or are taken by receives, timers. (Debug builds check that, whenever a gate is used.)
    #[inline(always)]
    pub fn fast(&mut self, id: QpId) -> Option<&mut Qp> {
        self.0.get_mut(id).map(Box::as_mut)
    }

    /// See [`Slab::checkout`].
    pub fn checkout(&mut self, id: QpId) -> Option<Box<Qp>> {
        let mut qp = self.0.checkout(id)?;
        qp.gates = Gates::SHUT;
        Some(qp)
    }

    /// See [`Slab::put_back`].
    #[inline]
    pub fn put_back(&mut self, id: QpId, qp: Box<Qp>) {
        self.0.put_back(id, qp);
    }

    pub fn remove(&mut self, id: QpId) -> Option<Box<Qp>> {
        self.0.remove(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (QpId, &Qp)> {
        self.0.iter().map(|(id, qp)| (id, qp.as_ref()))
    }
}
