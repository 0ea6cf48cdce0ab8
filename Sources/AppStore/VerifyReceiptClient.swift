package import AsyncHTTPClient
import Encoding
package import Foundation
import NIOHTTP1

/// Asks Apple's verifyReceipt about a legacy receipt.
///
/// Production first, always; the sandbox only when production says so (AppleFacts 5.1). At most three calls.
/// The HTTP client should not follow redirects: a receipt is not for other hosts.
package struct VerifyReceiptClient: Sendable {
    package struct Credentials: Sendable {
        /// Needed where receipts hold auto-renewables; sent as `password`.
        package var sharedSecret: String?
        package var productionURL: String
        package var sandboxURL: String

        package init(
            sharedSecret: String?,
            productionURL: String = "https://buy.itunes.apple.com/verifyReceipt",
            sandboxURL: String = "https://sandbox.itunes.apple.com/verifyReceipt"
        ) {
            self.sharedSecret = sharedSecret
            self.productionURL = productionURL
            self.sandboxURL = sandboxURL
        }
    }

    private var http: AppStoreHTTP
    private let credentials: Credentials

    /// - Parameter timeout: for each call, from the first byte to the last.
    package init(
        http: HTTPClient, credentials: Credentials, timeout: Duration = .seconds(20),
        now: @escaping @Sendable () -> Date = { Date() }
    ) {
        self.http = AppStoreHTTP(http: http, timeout: timeout, now: now)
        self.credentials = credentials
    }

    /// The same client, whose calls this limiter lets through.
    package func through(_ limiter: any CallLimiter) -> VerifyReceiptClient {
        var client = self
        client.http.limiter = limiter
        return client
    }

    /// What Apple says of `receipt`, base64 as the client submitted it.
    ///
    /// Success means only that the receipt is genuine: the caller judges the bundle id, the product ids and an empty
    /// list of purchases (AppleFacts 5.1).
    /// - Throws: the error of the last call, with the record of each.
    package func verify(_ receipt: String) async throws(AppStoreFailure) -> VerifiedReceipt {
        var environment = StoreEnvironment.production
        var calls: [ServiceCall] = []
        while true {
            let answer: CallAnswer<VerifiedReceipt>
            do throws(AppStoreError) {
                answer = try await ask(about: receipt, in: environment)
            } catch {
                throw AppStoreFailure(error, calls: calls)
            }
            calls.append(answer.call)
            switch answer.result {
            case .success(var verified):
                verified.calls = calls
                return verified
            case .failure(let error):
                guard let other = Self.redirection(from: environment, error), calls.count < Self.callLimit else {
                    throw AppStoreFailure(error, calls: calls)
                }
                environment = other
            }
        }
    }

    /// Production, sandbox, and production once more if the sandbox says it is production's after all.
    private static let callLimit = 3

    private static func redirection(
        from environment: StoreEnvironment, _ error: AppStoreError
    ) -> StoreEnvironment? {
        switch (environment, error) {
        case (.production, .receiptStatus(code: 21007, _)): .sandbox
        case (.sandbox, .receiptStatus(code: 21008, _)): .production
        default: nil
        }
    }

    private func ask(
        about receipt: String, in environment: StoreEnvironment
    ) async throws(AppStoreError) -> CallAnswer<VerifiedReceipt> {
        var fields: [String: JSON] = ["receipt-data": .string(receipt)]
        if let secret = credentials.sharedSecret { fields["password"] = .string(secret) }
        let url = environment == .production ? credentials.productionURL : credentials.sandboxURL
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers = ["Content-Type": "application/json", "Accept": "application/json"]
        request.body = .bytes(JSON.object(fields).bytes)

        return try await http.call(AppleHost(.verifyReceipt, environment), nil, request) { answer in
            Self.reading(answer, askedIn: environment)
        }
    }

    /// Genuine, but the subscription expired: only for receipts of iOS 6 style (AppleFacts 5.2).
    private static let expired = 21006

    static func reading(
        _ answer: AppStoreHTTP.Answer, askedIn environment: StoreEnvironment
    ) -> AppStoreHTTP.Reading<VerifiedReceipt> {
        guard (200..<300).contains(answer.status) else {
            return .init(code: nil, result: .failure(.httpStatus(answer.status)))
        }
        // Apple writes numbers here, unlike in the receipt.
        guard let object = answer.object, let status = AppleFields(object).int("status") else {
            return .init(code: nil, result: .failure(.garbage))
        }
        let code = Int64(status)
        if status == 0 || status == expired, let verified = try? VerifiedReceipt(object, askedIn: environment),
            status == 0 || !verified.entries.isEmpty
        {
            return .init(code: code, result: .success(verified))
        }
        guard status != 0 else { return .init(code: code, result: .failure(.garbage)) }
        let fields = AppleFields(object)
        let retryable = fields.flag("is_retryable") ?? fields.flag("is-retryable")
        return .init(code: code, result: .failure(.receiptStatus(code: status, retryable: retryable)))
    }
}
