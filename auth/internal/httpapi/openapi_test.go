package httpapi

import (
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"testing"

	"gatehouse/shared/must"
)

var update = flag.Bool("update", false, "compress openapi.json again instead of comparing it")

// The description that the program has is that of openapi.json.
func TestOpenAPI_isCompressed(t *testing.T) {
	want, err := os.ReadFile("openapi.json")
	must.Succeed(t, err)
	if bytes.Equal(OpenAPI(), want) {
		return
	}
	if !*update {
		t.Fatal("openapi.json.gz is not openapi.json: make docs compresses it")
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	w.Write(want)
	w.Close()
	must.Succeed(t, os.WriteFile("openapi.json.gz", packed.Bytes(), 0o644))
}
