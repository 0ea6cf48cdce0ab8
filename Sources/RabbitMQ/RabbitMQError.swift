/// Everything that can go wrong at the broker. A closed set: callers switch over it exhaustively.
///
/// After `lost`, `timedOut` and `blocked` the outcome is unknown: the message may be in its queue. After every other
/// failure of a publish the message is not in its queue. An error never holds server text, bodies or credentials.
package enum RabbitMQError: Error, Sendable, Equatable {
    /// No connection: not connected yet, the broker is down, or it ended the TLS handshake. Nothing was sent.
    case unreachable
    /// This process may open no more files (`ulimit -n`), and a connection needs four. Nothing was sent.
    case outOfDescriptors
    /// The broker refused the user, the password, the vhost, or a permission. A misconfiguration.
    case accessRefused
    /// The broker's certificate was not accepted, or a certificate file could not be read. A misconfiguration.
    case untrusted
    /// The connection went away before the answer came. Outcome unknown.
    case lost
    /// No queue of that name: the broker gave the message back (basic.return 312).
    case returned
    /// The broker answered basic.nack: the queue is full (reject-publish) or broken.
    case refused
    /// No confirm within the deadline. Outcome unknown; the connection is torn down.
    case timedOut
    /// The broker has a memory or disk alarm and does not read what we publish. Outcome unknown if it was sent.
    case blocked
    /// More publishes wait than `queueLimit` allows. Nothing was sent.
    case tooManyWaiting
    /// The publisher was closed. Nothing was sent.
    case closed
    /// A queue that exists with other arguments (406), is locked (405), or is missing (404). A misconfiguration.
    case topology(queue: String)
    /// The broker sent something that AMQP 0-9-1 does not allow here; the connection is torn down.
    case protocolViolation
    /// The named part of the broker's URL is missing, unknown or malformed. A misconfiguration.
    case badURL(field: String)
    /// The body or the queue's name is larger than this module carries. Nothing was sent.
    case tooLarge

    /// Whether the same call may succeed later without a new program or a new configuration file.
    package var isRetryable: Bool {
        switch self {
        case .unreachable, .outOfDescriptors, .accessRefused, .untrusted, .lost, .returned, .refused, .timedOut,
            .blocked,
            .tooManyWaiting, .topology, .protocolViolation:
            true
        case .closed, .badURL, .tooLarge: false
        }
    }

    /// Whether a person has to change something before the call can succeed.
    package var isMisconfiguration: Bool {
        switch self {
        case .accessRefused, .untrusted, .topology, .badURL: true
        case .unreachable, .outOfDescriptors, .lost, .returned, .refused, .timedOut, .blocked, .tooManyWaiting, .closed,
            .protocolViolation, .tooLarge:
            false
        }
    }

    /// A stable name for logs and metrics.
    package var label: String {
        switch self {
        case .unreachable: "unreachable"
        case .outOfDescriptors: "out_of_descriptors"
        case .accessRefused: "access_refused"
        case .untrusted: "untrusted"
        case .lost: "lost"
        case .returned: "returned"
        case .refused: "refused"
        case .timedOut: "timed_out"
        case .blocked: "blocked"
        case .tooManyWaiting: "too_many_waiting"
        case .closed: "closed"
        case .topology: "topology"
        case .protocolViolation: "protocol_violation"
        case .badURL: "bad_url"
        case .tooLarge: "too_large"
        }
    }
}

extension RabbitMQError: CustomStringConvertible {
    package var description: String {
        switch self {
        case .unreachable: "the broker cannot be reached, or one side wants TLS (amqps) and the other does not"
        case .outOfDescriptors: "no file descriptors are left for a connection to the broker (ulimit -n)"
        case .accessRefused: "the broker refused the user, the vhost or a permission"
        case .untrusted: "the broker's certificate was not accepted: cacertfile, or the host name in the URL"
        case .lost: "the connection to the broker was lost, outcome unknown"
        case .returned: "no queue took the message"
        case .refused: "the broker refused the message"
        case .timedOut: "no confirm from the broker in time, outcome unknown"
        case .blocked: "the broker accepts no messages because of a resource alarm"
        case .tooManyWaiting: "too many publishes are waiting"
        case .closed: "closed"
        case .topology(let queue): "the queue \(queue) is missing or not as declared"
        case .protocolViolation: "the broker broke the protocol"
        case .badURL(let field): "the broker URL is wrong: \(field)"
        case .tooLarge: "the message is too large"
        }
    }
}
