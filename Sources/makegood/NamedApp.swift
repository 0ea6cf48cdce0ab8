import AppStore
import Commands

/// An app named by options alone, without a configuration file.
struct NamedApp {
    static let environments: [StoreEnvironment] = [.production, .sandbox, .xcode, .localTesting]
    /// Bytes of a file of root certificates.
    private static let rootBytesMax = 1 << 20

    var bundleId: String
    var environment: StoreEnvironment
    var appAppleId: Int64?
    /// Files of certificates, PEM or DER, trusted beside Apple's pinned roots.
    var rootFiles: [String]

    /// - Throws: if a root file cannot be read or holds no certificate.
    func verifier(revocation: RevocationCheck? = nil) throws(UnusableInput) -> SignedDataVerifier {
        var roots: [[UInt8]] = []
        for path in rootFiles {
            let file = InputFile(path: path)
            let bytes = try file.read(bytesMax: Self.rootBytesMax)
            do {
                roots.append(contentsOf: try TrustAnchors.load(pemOrDER: bytes))
            } catch {
                throw UnusableInput("\(file.name): \(error)")
            }
        }
        do {
            return SignedDataVerifier(
                app: try AppIdentity(bundleId: bundleId, appAppleId: appAppleId, environments: [environment]),
                anchors: try TrustAnchors(rootCertificates: roots), revocation: revocation)
        } catch {
            throw UnusableInput("\(error)")
        }
    }

    /// - Throws: if the name is none of Apple's environments: a typing error must not look like a foreign purchase.
    static func environment(_ name: String) throws(UnusableInput) -> StoreEnvironment {
        guard let environment = environments.first(where: { $0.rawValue == name }) else {
            throw UnusableInput("--environment must be \(environments.map(\.rawValue).joined(separator: ", "))")
        }
        return environment
    }
}
