//! Loopback addresses for pods: predictable, so that a pod's siblings can be named before they exist.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

/// The first address for a pod; those below are for the control plane.
const FIRST: u8 = 10;

/// Addresses of one set of pods: as many ordinals as it may have.
const BLOCK: u8 = 10;

/// The addresses of a network `127.A.B`, which is shared by all process nodes on it.
pub struct Addresses {
    net: [u8; 2],
    /// Which block belongs to which set.
    blocks: Mutex<BTreeMap<u8, SetName>>,
}

/// Namespace and name of a set of pods: of `prod/etcd-2` that is `prod`, `etcd`.
type SetName = (String, String);

impl Addresses {
    /// The addresses of `127.A.B`.
    pub fn on(net: &str) -> Arc<Self> {
        let numbers: Vec<u8> = net.split('.').map_while(|number| number.parse().ok()).collect();
        let [127, a, b] = numbers[..] else { panic!("a network looks like 127.A.B, not like {net}") };
        Arc::new(Self { net: [a, b], blocks: Mutex::default() })
    }

    /// The address of a pod that exists or may exist: 10, 20, 30 and so on for a set, plus the pod's ordinal.
    pub fn of(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        let (set, ordinal) = match pod.rsplit_once('-') {
            Some((set, ordinal)) if let Ok(ordinal) = ordinal.parse::<u8>() => (set, ordinal),
            _ => (pod, 0),
        };
        assert!(ordinal < BLOCK, "{pod}: a set has at most {BLOCK} pods here");
        let name = (namespace.to_owned(), set.to_owned());
        let mut blocks = self.blocks.lock().expect("nobody panics here");
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

    /// The address of all pods that have no process, and so listen to nothing.
    pub fn of_idle_pods(&self) -> Ipv4Addr {
        let [a, b] = self.net;
        Ipv4Addr::new(127, a, b, FIRST - 1)
    }

    /// Gives back the addresses of a namespace.
    pub fn release(&self, namespace: &str) {
        self.blocks.lock().expect("nobody panics here").retain(|_, (owner, _)| owner != namespace);
    }
}
