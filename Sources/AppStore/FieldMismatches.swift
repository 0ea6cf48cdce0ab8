internal import Metrics
internal import Synchronization

/// Counts the fields of Apple's data that had another JSON type than documented, or could not be read (F15).
final class FieldMismatches: Sendable {
    static let shared = FieldMismatches()

    /// Each series is looked up once: if Apple changes a type, the field counts in every purchase.
    private let series = Mutex<[String: Counter]>([:])

    func count(_ field: AppleField) {
        let counter = series.withLock { series in
            if let known = series[field.name] { return known }
            let new = Counter(
                label: "makegood_apple_field_mismatches_total", dimensions: [("field", field.name)])
            series[field.name] = new
            return new
        }
        counter.increment()
    }
}
