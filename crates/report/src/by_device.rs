//! The part of a report that is about one of the process's devices.

use std::collections::HashSet;

use crate::facts::{Cm, Port};
use crate::{Device, Report};

impl Report {
    /// The objects of one device, and that device's counters. Packets are softrnic0's: softiw0 has none.
    pub fn of_device(&self, device: Device) -> Report {
        let mut part = self.clone();
        let wanted = device.is_iwarp();
        let adapter = &mut part.adapter;
        let its = std::mem::take(&mut adapter.softiw0);
        let set = |handles: &[u32]| handles.iter().copied().collect::<HashSet<u32>>();
        let (pds, mrs, qps, cqs, srqs) = (set(&its.pds), set(&its.mrs), set(&its.qps), set(&its.cqs), set(&its.srqs));
        adapter.contexts = if wanted { its.contexts } else { adapter.contexts.saturating_sub(its.contexts) };
        adapter.pd_list.retain(|pd| pds.contains(&pd.handle) == wanted);
        adapter.mr_list.retain(|mr| mrs.contains(&mr.handle) == wanted);
        adapter.qps.retain(|qp| qps.contains(&qp.number) == wanted);
        adapter.cqs.retain(|cq| cqs.contains(&cq.handle) == wanted);
        adapter.srqs.retain(|srq| srqs.contains(&srq.handle) == wanted);
        (adapter.pds, adapter.mrs) = (adapter.pd_list.len() as u32, adapter.mr_list.len() as u32);
        adapter.softiw0 = its;
        if let Some(Cm { ids, .. }) = &mut part.cm {
            ids.retain(|id| id.iwarp == wanted);
        }
        let has = |device: Device| part.adapter.devices.iter().any(|name| name == device.name());
        if wanted && has(Device::Roce) || !wanted && has(Device::Iwarp) && !has(Device::Roce) {
            part.adapter.port = Port::default();
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Adapter, CmId, Cq, Mr, Pd, Softiw0};

    #[test]
    fn each_object_is_of_one_device() {
        let pd = |handle| Pd { handle, users: 0 };
        let adapter = Adapter {
            contexts: 3,
            pds: 2,
            mrs: 2,
            pd_list: vec![pd(1), pd(2)],
            mr_list: vec![Mr { handle: 1, bytes: 8, pd: 1 }, Mr { handle: 2, bytes: 8, pd: 2 }],
            cqs: vec![Cq { handle: 1, ..Cq::default() }, Cq { handle: 2, ..Cq::default() }],
            devices: vec!["softrnic0".into(), "softiw0".into()],
            softiw0: Softiw0 { contexts: 1, pds: vec![2], mrs: vec![2], cqs: vec![1], ..Softiw0::default() },
            port: Port { packets_out: 7, ..Port::default() },
            ..Adapter::default()
        };
        let ids = vec![CmId { number: 1, iwarp: true, ..CmId::default() }, CmId { number: 2, ..CmId::default() }];
        let cm = Some(Cm { ids, ..Cm::default() });
        let whole = Report { adapter, cm, ..Report::default() };
        let found = |device| {
            let part = whole.of_device(device);
            let adapter = part.adapter;
            let ids: Vec<u32> = part.cm.iter().flat_map(|cm| &cm.ids).map(|id| id.number).collect();
            let handles = (adapter.pd_list[0].handle, adapter.mr_list[0].handle, adapter.cqs[0].handle);
            (adapter.contexts, adapter.pds, adapter.mrs, adapter.cqs.len(), handles, ids, adapter.port.packets_out)
        };
        assert_eq!(found(Device::Roce), (2, 1, 1, 1, (1, 1, 2), vec![2], 7));
        assert_eq!(found(Device::Iwarp), (1, 1, 1, 1, (2, 2, 1), vec![1], 0));
    }
}
