//! Links between the members of a cluster that a test can cut one by one.
//!
//! Each member advertises a proxy as its peer URL. All members have the same address as clients, so the proxy identifies a
//! connection by the header with which etcd sends the id of the calling member (`rafthttp`).

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// The port at which members listen for their peers.
const PEER_PORT: u16 = 2380;

/// The header with the member id of the caller, in hexadecimal.
const CALLER: &[u8] = b"X-Server-From: ";

/// A member: its id and its address.
pub type Peer = (u64, Ipv4Addr);

/// Proxies in front of the peer ports of members. They end when this is dropped.
pub struct PeerLinks {
    cut: watch::Sender<CutLinks>,
    _tasks: JoinSet<()>,
}

/// The connections that are cut: the id of the caller and the address of the other member, for each kind of connection.
type CutLinks = BTreeSet<(Connection, Peer)>;

/// The kind of a connection between two members (`rafthttp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Connection {
    /// The caller receives messages: a GET that does not end.
    Stream,
    /// The caller sends messages: POST.
    Pipeline,
}

impl PeerLinks {
    /// The port of the proxies, which the members advertise.
    pub const PORT: u16 = 12380;

    /// Starts a proxy at each of these addresses.
    pub async fn start(addresses: &[Ipv4Addr]) -> Self {
        let (cut, cut_links) = watch::channel(CutLinks::new());
        let mut tasks = JoinSet::new();
        for address in addresses {
            let listener =
                TcpListener::bind((*address, Self::PORT)).await.expect("a port at the member's address");
            tasks.spawn(serve(listener, *address, cut_links.clone()));
        }
        Self { cut, _tasks: tasks }
    }

    /// Closes all connections between two members, in both directions, and rejects new ones.
    pub fn cut(&self, one: Peer, other: Peer) {
        self.lose(one, other);
        self.lose(other, one);
    }

    /// Closes all connections on which messages from one member reach another one, and rejects new ones. Messages in the
    /// other direction pass.
    pub fn lose(&self, from: Peer, to: Peer) {
        let links = [(Connection::Pipeline, (from.0, to.1)), (Connection::Stream, (to.0, from.1))];
        self.cut.send_modify(|cut| cut.extend(links));
    }

    /// Admits all connections again.
    pub fn restore(&self) {
        self.cut.send_replace(CutLinks::new());
    }
}

async fn serve(listener: TcpListener, member: Ipv4Addr, cut: watch::Receiver<CutLinks>) {
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        connections.spawn(pass_on(caller, member, cut.clone()));
    }
}

async fn pass_on(caller: TcpStream, member: Ipv4Addr, cut: watch::Receiver<CutLinks>) {
    let Ok(server) = TcpStream::connect((member, PEER_PORT)).await else { return };
    let ((mut from_caller, mut to_caller), (mut from_member, mut to_member)) =
        (caller.into_split(), server.into_split());
    let caller_id = Arc::new(Mutex::new(None));
    let known_caller = Arc::clone(&caller_id);
    let is_cut = move |cut: &CutLinks| {
        let caller = *known_caller.lock().expect("the lock is not poisoned");
        caller.is_some_and(|(kind, id)| cut.contains(&(kind, (id, member))))
    };
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_caller.read(&mut buffer).await {
            if let Some(id) = caller_of(&buffer[..length]) {
                let is_post = buffer.starts_with(b"POST");
                let kind = if is_post { Connection::Pipeline } else { Connection::Stream };
                *caller_id.lock().expect("the lock is not poisoned") = Some((kind, id));
            }
            if is_cut(&cut.borrow()) || to_member.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    let mut changes = cut.clone();
    tokio::select! {
        () = requests => {}
        _ = tokio::io::copy(&mut from_member, &mut to_caller) => {}
        _ = changes.wait_for(|cut| is_cut(cut)) => {}
    }
}

/// Returns the member id in the header of a request.
fn caller_of(bytes: &[u8]) -> Option<u64> {
    let start = bytes.windows(CALLER.len()).position(|window| window == CALLER)? + CALLER.len();
    let digits: Vec<u8> = bytes[start..].iter().copied().take_while(u8::is_ascii_hexdigit).collect();
    u64::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
}
