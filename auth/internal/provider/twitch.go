package provider

import "net/http"

// twitchProof: its API requires the application's id next to the access token.
func twitchProof(s *signIn, _ map[string]string, header http.Header) {
	header.Set("Client-Id", s.clientID())
}
