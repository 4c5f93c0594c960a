package httpapi

import _ "embed"

//go:embed openapi.json
var openAPI []byte

// getOpenAPI answers the description of this API, OpenAPI 3.1.
func (s *Server) getOpenAPI(c *call) error {
	c.Header()["Cache-Control"] = []string{"public, max-age=3600"}
	return c.json(200, openAPI)
}
