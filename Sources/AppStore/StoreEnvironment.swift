/// Apple's environment as it stands on the wire.
///
/// An unknown value survives decoding and comparison; no app lists it among the environments it is served in.
/// Source: `environment` of the App Store Server API (AppleFacts 0).
package struct StoreEnvironment: RawRepresentable, Hashable, Sendable, Codable, CustomStringConvertible {
    package var rawValue: String

    package init(rawValue: String) { self.rawValue = rawValue }

    package static let production = StoreEnvironment(rawValue: "Production")
    /// Also TestFlight and App Review.
    package static let sandbox = StoreEnvironment(rawValue: "Sandbox")
    /// StoreKit testing in Xcode: never signed by Apple.
    package static let xcode = StoreEnvironment(rawValue: "Xcode")
    /// StoreKitTest: never signed by Apple.
    package static let localTesting = StoreEnvironment(rawValue: "LocalTesting")

    static let ofApple: Set<StoreEnvironment> = [.production, .sandbox]

    /// The environment of a receipt's type. Nil: an unknown type, or none.
    init?(receiptType: String?) {
        switch receiptType {
        case "Production", "ProductionVPP": self = .production
        case "ProductionSandbox", "ProductionVPPSandbox": self = .sandbox
        case "Xcode": self = .xcode
        case "LocalTesting": self = .localTesting
        default: return nil
        }
    }

    package var description: String { rawValue }

    /// Xcode signs with a key of its own; nobody can verify such data.
    var isUnsignedByApple: Bool { self == .xcode || self == .localTesting }
}
