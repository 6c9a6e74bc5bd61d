//! The queue pair state table: the transitions of each transport service, with the attributes that each requires and
//! permits. IBTA vol. 1, 10.3.1 (figure 124) and 11.2.5.2 (table 96); `ibv_modify_qp(3)`.
//!
//! One declarative table: `modify_qp` consults it, the conformance test walks it.

use crate::{QpAttrMask as M, QpState as S, QpType as T};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// The state before.
    pub from: S,
    /// The state after; equal to `from` where attributes may be set in place.
    pub to: S,
    /// The transport services that the row is about.
    pub types: &'static [T],
    /// The attributes that must be given.
    pub required: M,
    /// The attributes that may be given.
    pub optional: M,
}

const NONE: M = M::empty();

macro_rules! mask {
    () => { NONE };
    ($($flag:ident)|+) => { M::from_bits_truncate($(M::$flag.bits())|+) };
}

macro_rules! rows {
    ($($from:ident => $to:ident [$($ty:ident)+] need($($req:ident)|*) may($($opt:ident)|*);)*) => {
        &[$(Transition {
            from: S::$from, to: S::$to, types: &[$(T::$ty),+],
            required: mask!($($req)|*), optional: mask!($($opt)|*),
        }),*]
    };
}

/// Every transition but those to RESET and ERR, which every state has for every service, with no attributes.
pub const TABLE: &[Transition] = rows! {
    Reset => Init [Ud] need(PKEY_INDEX | PORT | QKEY) may();
    Reset => Init [Rc Uc XrcIni XrcTgt] need(PKEY_INDEX | PORT | ACCESS_FLAGS) may();
    Init => Init [Ud] need() may(PKEY_INDEX | PORT | QKEY);
    Init => Init [Rc Uc XrcIni XrcTgt] need() may(PKEY_INDEX | PORT | ACCESS_FLAGS);
    Init => Rtr [Ud] need() may(PKEY_INDEX | QKEY);
    Init => Rtr [Uc XrcIni] need(AV | PATH_MTU | DEST_QPN | RQ_PSN) may(ALT_PATH | ACCESS_FLAGS | PKEY_INDEX);
    Init => Rtr [Rc XrcTgt] need(AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER)
        may(ALT_PATH | ACCESS_FLAGS | PKEY_INDEX);
    Rtr => Rts [Ud] need(SQ_PSN) may(CUR_STATE | QKEY | RATE_LIMIT);
    Rtr => Rts [Uc] need(SQ_PSN) may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | RATE_LIMIT);
    Rtr => Rts [Rc] need(TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC)
        may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE | RATE_LIMIT);
    Rtr => Rts [XrcIni] need(TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC)
        may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | RATE_LIMIT);
    Rtr => Rts [XrcTgt] need(TIMEOUT | SQ_PSN)
        may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE | RATE_LIMIT);
    Rts => Rts [Ud] need() may(CUR_STATE | QKEY | RATE_LIMIT);
    Rts => Rts [Uc XrcIni] need() may(CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | RATE_LIMIT);
    Rts => Rts [Rc XrcTgt] need()
        may(CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER | RATE_LIMIT);
    Rts => Sqd [Ud Uc Rc XrcIni XrcTgt] need() may(EN_SQD_ASYNC_NOTIFY);
    Sqd => Rts [Ud] need() may(CUR_STATE | QKEY);
    Sqd => Rts [Uc XrcIni] need() may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE);
    Sqd => Rts [Rc XrcTgt] need() may(CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | MIN_RNR_TIMER);
    Sqd => Sqd [Ud] need() may(PKEY_INDEX | QKEY);
    Sqd => Sqd [Uc] need() may(AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE);
    Sqd => Sqd [Rc] need()
        may(PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | ALT_PATH
            | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER | PATH_MIG_STATE);
    Sqd => Sqd [XrcIni] need()
        may(PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX
            | PATH_MIG_STATE);
    Sqd => Sqd [XrcTgt] need()
        may(PORT | AV | TIMEOUT | MAX_DEST_RD_ATOMIC | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER
            | PATH_MIG_STATE);
    Sqe => Rts [Ud] need() may(CUR_STATE | QKEY);
    Sqe => Rts [Uc] need() may(CUR_STATE | ACCESS_FLAGS);
};

/// The row for a transition, or `None` when there is none. Transitions to RESET and ERR require and permit nothing.
pub fn transition(ty: T, from: S, to: S) -> Option<(M, M)> {
    if matches!(to, S::Reset | S::Err) {
        return Some((NONE, NONE));
    }
    TABLE
        .iter()
        .find(|row| row.from == from && row.to == to && row.types.contains(&ty))
        .map(|row| (row.required, row.optional))
}

/// True if `modify_qp` with this mask (STATE and all) is allowed: the row exists, every required attribute is there,
/// and none that is neither required nor optional.
pub fn allows(ty: T, from: S, to: S, mask: M) -> bool {
    let Some((required, optional)) = transition(ty, from, to) else { return false };
    mask.contains(required) && (required | optional | M::STATE).contains(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [T; 5] = [T::Rc, T::Uc, T::Ud, T::XrcIni, T::XrcTgt];
    const STATES: [S; 7] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];

    #[test]
    fn rows_are_unique_and_ask_for_nothing_twice() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!((row.required & row.optional).is_empty(), "{row:?}");
            for other in &TABLE[..i] {
                let same = row.from == other.from && row.to == other.to;
                assert!(!same || row.types.iter().all(|ty| !other.types.contains(ty)), "{row:?} and {other:?}");
            }
        }
    }

    /// RESET and ERR can be reached from everywhere; there is no way past a state (10.3.1).
    #[test]
    fn the_way_up_has_no_short_cut() {
        for ty in TYPES {
            for from in STATES {
                assert_eq!(transition(ty, from, S::Reset), Some((NONE, NONE)));
                assert_eq!(transition(ty, from, S::Err), Some((NONE, NONE)));
                assert_eq!(transition(ty, from, S::Init).is_some(), matches!(from, S::Reset | S::Init));
                assert_eq!(transition(ty, from, S::Rtr).is_some(), from == S::Init);
                assert_eq!(transition(ty, from, S::Sqe), None, "only an error leads there");
            }
            assert!(transition(ty, S::Rtr, S::Rts).is_some() && transition(ty, S::Rts, S::Sqd).is_some());
            assert_eq!(transition(ty, S::Sqe, S::Rts).is_some(), matches!(ty, T::Ud | T::Uc), "11.2.5.2");
        }
    }

    #[test]
    fn a_mask_must_have_what_is_required_and_nothing_unknown() {
        for row in TABLE {
            for &ty in row.types {
                let allowed = |mask| allows(ty, row.from, row.to, mask);
                assert!(allowed(M::STATE | row.required) && allowed(M::STATE | row.required | row.optional));
                for flag in row.required.iter() {
                    assert!(!allowed((M::STATE | row.required) - flag), "{row:?} without {flag:?}");
                }
                for flag in (M::all() - M::STATE - row.required - row.optional).iter() {
                    assert!(!allowed(M::STATE | row.required | flag), "{row:?} with {flag:?}");
                }
            }
        }
    }
}
