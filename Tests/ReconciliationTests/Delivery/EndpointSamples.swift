import Foundation
import Testing

@testable import Settings

/// Endpoints for tests, read from the text of a configuration as an operator writes it.
enum EndpointSamples {
    static let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    static let newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

    /// The file of one app with these endpoints, each in the form `{name: …}`.
    static func yaml(_ endpoints: String...) -> String {
        """
        apps:
          - id: game
            bundleId: com.example.game
            environments: [Sandbox]
            products: []
            endpoints:
        \(endpoints.map { "      - \($0)" }.joined(separator: "\n"))
        """
    }

    /// - Parameter members: those beside `name`, `url` and `secret`.
    static func endpoint(
        _ url: String, secrets: String = secret, _ members: String = "allowPrivate: ['127.0.0.1']"
    ) throws -> EndpointSettings {
        let yaml = yaml("{name: hooks, url: '\(url)', secret: '\(secrets)', \(members)}")
        let configuration = try Configuration.parse(yaml, directory: .temporaryDirectory)
        return try #require(configuration.apps["game"]?.endpoints.first)
    }
}
