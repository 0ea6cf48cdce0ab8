import Synchronization

/// The configuration in force, shared by everything that follows a reload.
///
/// A change is checked before it is put here, so that a reader may rely on all of it.
package final class ConfigurationHolder: Sendable {
    private let value: Mutex<Configuration>

    package init(_ configuration: Configuration) {
        value = Mutex(configuration)
    }

    /// Take it once per request or batch, so that one decision is made under one configuration.
    package var current: Configuration { value.withLock { $0 } }

    package func replace(_ configuration: Configuration) {
        value.withLock { $0 = configuration }
    }
}
