//! The chart, the manifests, the image, the monitoring files and the scripts.

mod chart;
mod chart_platforms;
mod chart_readme;
mod chart_values;
mod chart_variants;
mod helm;
mod image;
mod manifests;
mod monitoring;
mod release;
pub(crate) mod scripts;
