//! A collector of traces: it takes OTLP over gRPC, as the OpenTelemetry Collector does, and keeps what it is sent.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::WithTrailers};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use tokio::net::TcpListener;

use super::wait::some;

/// Longest until a span arrives: they are sent every two seconds.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(180);

/// A collector that listens.
pub struct TraceReceiver {
    address: SocketAddr,
    taken: Taken,
}

/// What it was sent so far.
type Taken = Arc<Mutex<Vec<Batch>>>;

struct Batch {
    bytes: Bytes,
    request: ExportTraceServiceRequest,
}

/// A span that arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub name: String,
    pub trace_id: String,
    pub span_id: String,
    pub parent_id: String,
    pub took: Duration,
    /// Values as they would be printed.
    pub attributes: BTreeMap<String, String>,
}

impl TraceReceiver {
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let taken = Taken::default();
        tokio::spawn(serve(listener, Arc::clone(&taken)));
        Self { address, taken }
    }

    /// What `--otlp-endpoint` is.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that arrived.
    pub fn spans(&self) -> Vec<Arrived> {
        let taken = self.taken.lock().expect("nobody panics here");
        let resources = taken.iter().flat_map(|it| &it.request.resource_spans);
        resources.flat_map(|it| &it.scope_spans).flat_map(|it| &it.spans).map(Arrived::of).collect()
    }

    /// What the sender says of itself.
    pub fn sender(&self) -> BTreeMap<String, String> {
        let taken = self.taken.lock().expect("nobody panics here");
        let resources = taken.iter().flat_map(|it| &it.request.resource_spans);
        resources.filter_map(|it| it.resource.as_ref()).flat_map(|it| attributes(&it.attributes)).collect()
    }

    /// Whether these bytes are in anything that it was sent.
    pub fn has_heard(&self, secret: &[u8]) -> bool {
        let taken = self.taken.lock().expect("nobody panics here");
        taken.iter().any(|it| it.bytes.windows(secret.len()).any(|window| window == secret))
    }

    /// Waits for a span.
    pub async fn span(&self, what: &str, is_it: impl Fn(&Arrived) -> bool) -> Arrived {
        let find = async || self.spans().into_iter().find(&is_it);
        some(&format!("a span arrives: {what}"), ARRIVAL_LIMIT, find).await
    }
}

impl Arrived {
    fn of(span: &Span) -> Self {
        Self {
            name: span.name.clone(),
            trace_id: hex(&span.trace_id),
            span_id: hex(&span.span_id),
            parent_id: hex(&span.parent_span_id),
            took: Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano),
            attributes: attributes(&span.attributes).collect(),
        }
    }

    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map(String::as_str).unwrap_or_default()
    }
}

fn attributes(pairs: &[KeyValue]) -> impl Iterator<Item = (String, String)> {
    let value = |it: &KeyValue| it.value.as_ref()?.value.as_ref().map(printed);
    pairs.iter().filter_map(move |it| Some((it.key.clone(), value(it)?)))
}

fn printed(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(it) => it.to_string(),
        Value::IntValue(it) => it.to_string(),
        Value::DoubleValue(it) => it.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|it| char::from_digit(it.into(), 16))
        .collect()
}

async fn serve(listener: TcpListener, taken: Taken) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let taken = Arc::clone(&taken);
        let service = service_fn(move |request| answer(request, Arc::clone(&taken)));
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn answer(
    request: Request<Incoming>,
    taken: Taken,
) -> Result<Response<WithTrailers<Full<Bytes>, Ended>>, Infallible> {
    assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let mut message = request.into_body().collect().await.expect("a whole message").to_bytes();
    // Of gRPC: whether it is compressed, how long it is, and the message.
    assert_eq!(message.get_u8(), 0, "not compressed");
    let length = usize::try_from(message.get_u32()).expect("a length");
    let bytes = message.split_to(length);
    let request = ExportTraceServiceRequest::decode(bytes.clone()).expect("an export of traces");
    taken.lock().expect("nobody panics here").push(Batch { bytes, request });
    // An empty message, and that all is well.
    let trailers =
        HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))]);
    let body = Full::from(Bytes::from_static(&[0; 5])).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc").body(body);
    Ok(response.expect("a response"))
}

type Ended = std::future::Ready<Option<Result<HeaderMap, Infallible>>>;
