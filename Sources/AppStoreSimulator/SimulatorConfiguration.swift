/// The settings that one simulator starts with.
package struct SimulatorConfiguration: Sendable {
    /// The default of ``purchasesMax``.
    package static let purchasesMaxDefault = 2_000_000

    /// The address to listen on: a name or a literal address.
    package var host: String
    /// The port to listen on; 0 lets the system choose (read it back from ``AppStoreSimulator/boundPort``).
    package var port: Int
    /// The folder that keeps certificate authority, credentials, counter and ledger; nil keeps all of it in memory.
    package var stateDirectory: String?
    /// The seed of the random numbers that decide latencies and faults by percentage; nil: different at each start.
    /// Keys and ids never come from the seed.
    package var seed: UInt64?
    /// How many purchases the ledger holds before it refuses to sell (about 700 bytes each).
    package var purchasesMax: Int
    /// Whether certificates name an OCSP responder, which is this simulator.
    package var namesResponder: Bool
    /// Where the notifications of apps go that have no URL of their own, unless the store's settings name another URL;
    /// nil: nowhere.
    package var notificationURL: String?

    package init(
        host: String = "127.0.0.1",
        port: Int = 0,
        stateDirectory: String? = nil,
        seed: UInt64? = nil,
        purchasesMax: Int = purchasesMaxDefault,
        namesResponder: Bool = false,
        notificationURL: String? = nil
    ) {
        self.host = host
        self.port = port
        self.stateDirectory = stateDirectory
        self.seed = seed
        self.purchasesMax = purchasesMax
        self.namesResponder = namesResponder
        self.notificationURL = notificationURL
    }

    /// An address that a client can call: not "every interface", and IPv6 in brackets.
    package var reachableHost: String {
        switch host {
        case "0.0.0.0": "127.0.0.1"
        case "::": "[::1]"
        default: host.contains(":") ? "[\(host)]" : host
        }
    }
}

/// The credentials that an operator of a real app would get from App Store Connect. The simulator makes them at its
/// first start.
///
/// The simulator verifies them on every call: the key signs the bearer token of the App Store Server API, and the
/// secret travels as `password` to verifyReceipt.
package struct Credentials: Sendable, Codable, Equatable {
    /// The `iss` claim of the bearer token: a UUID.
    package let issuerId: String
    /// The `kid` header of the bearer token: ten letters and digits.
    package let keyId: String
    /// The private key, PKCS#8 PEM, EC P-256, as in a `SubscriptionKey_….p8` file.
    package let privateKeyPEM: String
    /// The shared secret of verifyReceipt: 32 hexadecimal digits. An app may have its own (`/control/apps`).
    package let sharedSecret: String
}

/// Why a simulator cannot start. No case goes away by trying again.
package enum SimulatorError: Error, Equatable, CustomStringConvertible {
    /// A file or folder of the state directory cannot be made, read or locked; the message names it.
    case state(String)
    /// The stored certificates or keys are damaged, or new ones could not be made.
    case authority(String)
    /// The listener ended before, or while, a caller waited for its port.
    case notListening

    package var description: String {
        switch self {
        case .state(let reason): "state directory: \(reason)"
        case .authority(let reason): "certificate authority: \(reason)"
        case .notListening: "the simulator is not listening"
        }
    }
}

/// A request that the control API, or its in-process twin, refuses.
///
/// Answered as JSON `{"error": message, "field": field}` with `status`.
package struct ControlError: Error, Equatable, CustomStringConvertible {
    /// The HTTP status: 400 for input, 404 for an unknown purchase, 503 for a full ledger.
    package let status: Int
    /// The field to blame, as a path (`distribution.medianMilliseconds`); nil if there is no single one.
    package let field: String?
    /// What is wrong with it.
    package let message: String

    package init(status: Int = 400, field: String? = nil, _ message: String) {
        self.status = status
        self.field = field
        self.message = message
    }

    package var description: String {
        field.map { "\($0): \(message)" } ?? message
    }
}
