import Foundation
import Settings

@testable import AppStoreSimulator

/// Signs notifications as Apple does, below a root of its own that the apps of its configuration believe.
struct TestApple: Sendable {
    static let bundleID = "com.example.game"
    static let appAppleID: Int64 = 1_234_567_890
    static let secret = "shared-secret-of-game"

    private let authority: CertificateAuthority
    private let signer: TransactionSigner
    /// Signs with a complete, correct chain below a root that nobody believes.
    private let forger: TransactionSigner

    init() throws {
        authority = try .make()
        signer = try TransactionSigner(authority)
        forger = try TransactionSigner(.make(name: "Forger"))
    }

    func sign(_ payload: String) throws -> String { try signer.sign(Array(payload.utf8)) }
    func forge(_ payload: String) throws -> String { try forger.sign(Array(payload.utf8)) }
    func signWrongly(_ payload: String) throws -> String { try signer.signWrongly(Array(payload.utf8)) }
    func swap(_ payload: String, for shown: String) throws -> String {
        try signer.sign(Array(payload.utf8), insteadOf: Array(shown.utf8))
    }

    /// Signs with a leaf that ended a year ago.
    func signWithEndedLeaf(_ payload: String) throws -> String {
        try TransactionSigner(authority.expired()).sign(Array(payload.utf8))
    }

    /// Two apps: one in both environments, with a shared secret and another URL; and one in the sandbox alone.
    func configuration() throws -> Configuration {
        let directory = FileManager.default.temporaryDirectory.appending(path: "makegood-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try Data(try authority.chainDER()[2]).write(to: directory.appending(path: "root.der"))
        return try Configuration.parse(
            """
            apps:
              - id: game
                bundleId: \(Self.bundleID)
                bundleIdAliases: [maccatalyst.\(Self.bundleID)]
                appAppleId: \(Self.appAppleID)
                environments: [Production]
                rootCertificates: [root.der]
                verifyReceipt: {sharedSecret: \(Self.secret)}
                notifications: {forwardTo: https://hooks.example.com/apple}
                products: []
              - id: trial
                bundleId: com.example.trial
                environments: [Sandbox]
                rootCertificates: [root.der]
                products: []
            access:
            \(IntakeFixture.entry("gateway", IntakeFixture.key, "intake", "game"))
            """, directory: directory)
    }

    /// The content of a notification of Apple's.
    struct Notification {
        var type: String? = "DID_RENEW"
        var subtype: String?
        var id: String? = UUID().uuidString.lowercased()
        var signedAt = Date.now
        /// The member that holds the rest; nil: none.
        var object: String? = "data"
        var bundleID: String? = TestApple.bundleID
        var appAppleID: Int64? = TestApple.appAppleID
        var environment: String? = "Production"
        var transaction: String?
        var renewal: String?
        /// Further members of the whole, each with a comma before it.
        var more = ""

        var json: String {
            let inner = [
                bundleID.map { #""bundleId":"\#($0)""# }, appAppleID.map { #""appAppleId":\#($0)"# },
                environment.map { #""environment":"\#($0)""# },
                transaction.map { #""signedTransactionInfo":"\#($0)""# },
                renewal.map { #""signedRenewalInfo":"\#($0)""# },
            ]
            let members = [
                type.map { #""notificationType":"\#($0)""# }, subtype.map { #""subtype":"\#($0)""# },
                id.map { #""notificationUUID":"\#($0)""# }, #""version":"2.0""#,
                #""signedDate":\#(Int64(signedAt.timeIntervalSince1970 * 1000))"#,
                object.map { #""\#($0)":{\#(inner.compactMap(\.self).joined(separator: ","))}"# },
            ]
            return "{\(members.compactMap(\.self).joined(separator: ","))\(more)}"
        }
    }

    static func notification(_ change: (inout Notification) -> Void = { _ in }) -> Notification {
        var notification = Notification()
        change(&notification)
        return notification
    }

    static func transaction(
        bundleID: String = bundleID, environment: String = "Production", signedAt: Date = .now
    ) -> String {
        #"{"transactionId":"2000000000000002","originalTransactionId":"2000000000000001","bundleId":"\#(bundleID)","#
            + #""productId":"pass","type":"Auto-Renewable Subscription","purchaseDate":1779999000000,"#
            + #""expiresDate":1790000000000,"environment":"\#(environment)","#
            + #""signedDate":\#(Int64(signedAt.timeIntervalSince1970 * 1000))}"#
    }

    static func renewal(environment: String = "Production") -> String {
        #"{"originalTransactionId":"2000000000000001","autoRenewProductId":"pass","autoRenewStatus":1,"#
            + #""environment":"\#(environment)","signedDate":\#(Int64(Date.now.timeIntervalSince1970 * 1000))}"#
    }
}
