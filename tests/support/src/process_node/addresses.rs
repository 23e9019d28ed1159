//! Predictable loopback addresses for pods, so that a pod can refer to its siblings before they exist.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

/// The first address for a pod. Lower addresses belong to the control plane.
const FIRST: u8 = 10;

/// The number of addresses of one set of pods, and thereby of its ordinals.
const BLOCK: u8 = 10;

/// The addresses of a network `127.A.B`, shared by all process nodes on it.
pub struct Addresses {
    net: [u8; 2],
    /// The set that each block belongs to.
    blocks: Mutex<BTreeMap<u8, SetName>>,
}

/// The namespace and the name of a set of pods: `prod` and `etcd` for the pod `prod/etcd-2`.
type SetName = (String, String);

impl Addresses {
    /// Creates the address pool of the network `127.A.B`.
    pub fn new(net: &str) -> Arc<Self> {
        let numbers: Vec<u8> = net.split('.').map_while(|number| number.parse().ok()).collect();
        let [127, a, b] = numbers[..] else { panic!("{net} is not a network of the form 127.A.B") };
        Arc::new(Self { net: [a, b], blocks: Mutex::default() })
    }

    /// Returns the address of a pod, which need not exist: 10, 20, 30 and so on for a set, plus the pod's ordinal.
    pub fn pod_address(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        let (set, ordinal) = match pod.rsplit_once('-') {
            Some((set, ordinal)) if let Ok(ordinal) = ordinal.parse::<u8>() => (set, ordinal),
            _ => (pod, 0),
        };
        assert!(ordinal < BLOCK, "{pod}: a set has at most {BLOCK} pods here");
        let name = (namespace.to_owned(), set.to_owned());
        let mut blocks = self.blocks.lock().expect("the lock is not poisoned");
        let known = blocks.iter().find(|(_, owner)| **owner == name).map(|(block, _)| *block);
        let block = known.unwrap_or_else(|| {
            let free = (0..(u8::MAX - FIRST) / BLOCK).find(|block| !blocks.contains_key(block));
            let free = free.expect("an address for another set of pods");
            blocks.insert(free, name);
            free
        });
        let [a, b] = self.net;
        Ipv4Addr::new(127, a, b, FIRST + block * BLOCK + ordinal)
    }

    /// Returns the common address of all pods without a process, where no process listens.
    pub fn idle_address(&self) -> Ipv4Addr {
        let [a, b] = self.net;
        Ipv4Addr::new(127, a, b, FIRST - 1)
    }

    /// Releases the addresses of a namespace.
    pub fn release(&self, namespace: &str) {
        self.blocks.lock().expect("the lock is not poisoned").retain(|_, (owner, _)| owner != namespace);
    }
}
