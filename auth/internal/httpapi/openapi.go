package httpapi

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"sync"
)

// openapi.json.gz is openapi.json, which make docs compresses. Uncompressed, it would be a hundredth of the program's
// size.
//
//go:embed openapi.json.gz
var openAPIGzip []byte

// OpenAPI returns the description of this API (OpenAPI 3.1), which is the answer to GET /openapi.json.
var OpenAPI = sync.OnceValue(func() []byte {
	text, err := gunzip(openAPIGzip)
	if err != nil {
		panic(fmt.Sprint("openapi.json.gz in this program: ", err))
	}
	return text
})

func gunzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// getOpenAPI answers with the description of this API.
func (s *Server) getOpenAPI(c *call) error {
	c.Header()["Cache-Control"] = []string{"public, max-age=3600"}
	return c.json(200, OpenAPI())
}
