//! A trace collector that receives OTLP over gRPC, like the OpenTelemetry Collector, and stores the spans.

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

use crate::wait::wait_for;

/// The longest time until a span arrives; the guard exports every two seconds.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(180);

/// A listening collector.
pub struct TraceReceiver {
    address: SocketAddr,
    exports: Exports,
}

/// The exports so far.
type Exports = Arc<Mutex<Vec<Batch>>>;

struct Batch {
    bytes: Bytes,
    request: ExportTraceServiceRequest,
}

/// A received span.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    /// The name of the span.
    pub name: String,
    /// The id of the trace, hexadecimal.
    pub trace_id: String,
    /// The id of the span, hexadecimal.
    pub span_id: String,
    /// The id of the parent span, empty for the root.
    pub parent_id: String,
    /// Time of its start, since the Unix epoch.
    pub began: Duration,
    /// The duration of the span.
    pub took: Duration,
    /// The attributes in their printed form.
    pub attributes: BTreeMap<String, String>,
}

impl TraceReceiver {
    /// Starts a receiver on a free port.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a receiver at this address.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let exports = Exports::default();
        tokio::spawn(serve(listener, Arc::clone(&exports)));
        Self { address, exports }
    }

    /// Returns the value for `--otlp-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all received spans.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        let exports = self.exports.lock().expect("the lock is not poisoned");
        let resources = exports.iter().flat_map(|batch| &batch.request.resource_spans);
        resources
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| &scope.spans)
            .map(ReceivedSpan::from_proto)
            .collect()
    }

    /// Returns the resource attributes of the sender.
    pub fn sender(&self) -> BTreeMap<String, String> {
        let exports = self.exports.lock().expect("the lock is not poisoned");
        let resources = exports.iter().flat_map(|batch| &batch.request.resource_spans);
        resources
            .filter_map(|spans| spans.resource.as_ref())
            .flat_map(|resource| attributes(&resource.attributes))
            .collect()
    }

    /// Whether an export contains these bytes.
    pub fn has_received(&self, secret: &[u8]) -> bool {
        let exports = self.exports.lock().expect("the lock is not poisoned");
        exports.iter().any(|batch| batch.bytes.windows(secret.len()).any(|window| window == secret))
    }

    /// Waits for a span.
    pub async fn span(&self, description: &str, matches: impl Fn(&ReceivedSpan) -> bool) -> ReceivedSpan {
        let find = async || self.spans().into_iter().find(&matches);
        wait_for(&format!("a span arrives: {description}"), ARRIVAL_TIMEOUT, find).await
    }
}

impl ReceivedSpan {
    fn from_proto(span: &Span) -> Self {
        Self {
            name: span.name.clone(),
            trace_id: hex(&span.trace_id),
            span_id: hex(&span.span_id),
            parent_id: hex(&span.parent_span_id),
            began: Duration::from_nanos(span.start_time_unix_nano),
            took: Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano),
            attributes: attributes(&span.attributes).collect(),
        }
    }

    /// Returns the value of an attribute.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map(String::as_str).unwrap_or_default()
    }
}

fn attributes(pairs: &[KeyValue]) -> impl Iterator<Item = (String, String)> {
    let value = |pair: &KeyValue| pair.value.as_ref()?.value.as_ref().map(printed);
    pairs.iter().filter_map(move |pair| Some((pair.key.clone(), value(pair)?)))
}

fn printed(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

async fn serve(listener: TcpListener, exports: Exports) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let exports = Arc::clone(&exports);
        let service = service_fn(move |request| answer(request, Arc::clone(&exports)));
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn answer(
    request: Request<Incoming>,
    exports: Exports,
) -> Result<Response<WithTrailers<Full<Bytes>, Ended>>, Infallible> {
    assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let mut message = request.into_body().collect().await.expect("a whole message").to_bytes();
    // A gRPC frame: a compression flag, the length and the message.
    assert_eq!(message.get_u8(), 0, "not compressed");
    let length = usize::try_from(message.get_u32()).expect("a length");
    let bytes = message.split_to(length);
    let request = ExportTraceServiceRequest::decode(bytes.clone()).expect("an export of traces");
    exports.lock().expect("the lock is not poisoned").push(Batch { bytes, request });
    // An empty message with the status OK.
    let trailers =
        HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))]);
    let body = Full::from(Bytes::from_static(&[0; 5])).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc").body(body);
    Ok(response.expect("a response"))
}

type Ended = std::future::Ready<Option<Result<HeaderMap, Infallible>>>;
