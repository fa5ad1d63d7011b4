//! A container of `redis:7-alpine` by testcontainers.

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage};

pub struct Container {
    pub port: u16,
    _container: ContainerAsync<GenericImage>,
}

impl Container {
    /// Fails when no Docker engine answers, or it has no such image and cannot get it.
    pub async fn start() -> Result<Container, String> {
        let image = GenericImage::new("redis", "7-alpine")
            .with_exposed_port(6379.tcp())
            .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"));
        let container = image.start().await.map_err(|e| e.to_string())?;
        let port = container.get_host_port_ipv4(6379.tcp()).await.map_err(|e| e.to_string())?;
        Ok(Container { port, _container: container })
    }
}
