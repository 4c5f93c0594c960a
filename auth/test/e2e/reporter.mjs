// One JSON object per case for the Go test.
export default async function* (source) {
  for await (const { type, data } of source) {
    if (type === 'test:pass' || type === 'test:fail') {
      const error = data.details.error
      yield JSON.stringify({
        name: data.name, file: data.file, ok: type === 'test:pass', ms: data.details.duration_ms,
        error: error ? String(error.cause?.stack ?? error.cause ?? error) : '',
      }) + '\n'
    }
  }
}
