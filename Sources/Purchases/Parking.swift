/// When tries end and a person is needed (RetriesAndRescue): after this age *and* eight attempts.
package struct Parking: Sendable, Equatable {
    package static let attemptsMin = 8
    package var after: Duration = .seconds(86_400)
    package var againMin: Duration = .seconds(3600)
    package var againMax: Duration = .seconds(86_400)
    /// How long the poster's app keeps its copy of a purchase that another user has by less than proof.
    package var disputedFor: Duration = .seconds(86_400)

    package init(scale: Double = 1) {
        after = after * scale
        disputedFor = disputedFor * scale
        againMin = againMin * scale
        againMax = againMax * scale
    }
}
