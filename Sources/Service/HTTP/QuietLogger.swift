package import Logging

extension Logger {
    /// A logger for the libraries below. Their notices are left out, because this program logs the same events itself.
    /// The metadata that they note about each request is formatted only if a line is written.
    package var quiet: Logger {
        var quiet = Logger(label: label) { [handler] _ in LateMetadata(below: handler) }
        quiet.logLevel = max(logLevel, .warning)
        return quiet
    }
}

/// Keeps metadata unformatted. The library's text handler formats all of it whenever one value is set.
private struct LateMetadata: LogHandler {
    var below: any LogHandler
    var metadata: Logger.Metadata = [:]

    var logLevel: Logger.Level {
        get { below.logLevel }
        set { below.logLevel = newValue }
    }

    subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { metadata[key] }
        set { metadata[key] = newValue }
    }

    func log(event: LogEvent) {
        var event = event
        event.metadata = metadata.merging(event.metadata ?? [:]) { $1 }
        below.log(event: event)
    }
}
