import AppStoreSimulator
import Crypto
import Foundation

/// A directory with the files that the sample names.
struct ConfigurationFiles {
    let directory: URL

    init(privateKey: String? = nil) throws {
        directory = FileManager.default.temporaryDirectory.appending(path: "makegood-\(UUID().uuidString)")
        let roots = directory.appending(path: "roots")
        try FileManager.default.createDirectory(at: roots, withIntermediateDirectories: true)
        let key = P256.Signing.PrivateKey()
        try write(privateKey ?? key.pemRepresentation, to: "key.p8")
        try write(key.publicKey.pemRepresentation, to: "gateway.pem")
        try Self.root.write(to: roots.appending(path: "test.der"))
    }

    func write(_ text: String, to name: String) throws {
        try Data(text.utf8).write(to: directory.appending(path: name))
    }

    func remove() { try? FileManager.default.removeItem(at: directory) }

    /// A root certificate; any will do.
    private static let root = (try? AppStoreSimulator(logger: .silent)).map { Data($0.rootCertificateDER) } ?? Data()
}
