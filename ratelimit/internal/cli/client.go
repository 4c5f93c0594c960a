package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/grpctls"
	"gatehouse/shared/certs"
)

const clientUsage = `usage: ratelimit client [-dial_string HOST:PORT] -domain D -descriptors key=value,... [-descriptors ...]
example: ratelimit client -dial_string localhost:8081 -domain shop -descriptors user=ann
`

// client is the command client, which sends one request to a running daemon. It returns 0 with any answer, 1 without an
// answer, and 2 for bad flags. replaced is set if the program was called as envoyproxy/ratelimit's client: client then
// prints its flags before the answer, as that program does.
func client(ctx context.Context, args []string, replaced bool, stdout, stderr io.Writer) int {
	flags := newFlags("client", clientUsage, stderr)
	address := flags.String("dial_string", "localhost:8081", "server to ask, host:port")
	domain := flags.String("domain", "", "rate limit `domain`")
	var request requestFlags
	request.define(flags)
	format := flags.String("format", "text", "text, or json for the answer alone")
	useTLS, files := tlsFlags(flags)
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "ratelimit client: %q is no flag\n", flags.Arg(0))
		return exitUsage
	}
	if *format != "text" && *format != "json" {
		fmt.Fprintf(stderr, "ratelimit client: -format is %q; allowed are text and json\n", *format)
		return exitUsage
	}
	asJSON := *format == "json"
	if !asJSON && replaced {
		writeFlags(stdout, flags)
	}
	noAnswer := stdout
	if asJSON {
		noAnswer = stderr
	}

	protection, closeFiles, err := protectionOf(*useTLS, *files, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "ratelimit client: %v\n", err)
		return exitUsage
	}
	defer closeFiles()
	conn, err := grpc.NewClient(*address, grpc.WithTransportCredentials(protection))
	if err != nil {
		fmt.Fprintf(noAnswer, "request error: %v\n", err)
		return exitFailed
	}
	defer conn.Close()
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &pb.RateLimitRequest{
		Domain: *domain, Descriptors: request.descriptors, HitsAddend: max(request.hits, 1),
	})
	if err != nil {
		fmt.Fprintf(noAnswer, "request error: %v\n", err)
		if !*useTLS && strings.Contains(err.Error(), "server preface") {
			fmt.Fprintln(stderr, "ratelimit client: the port does not answer as gRPC does; if it speaks TLS: -grpc-use-tls")
		}
		return exitFailed
	}
	if !asJSON {
		fmt.Fprintf(stdout, "response: %v\n", answer)
		return exitOK
	}
	if err := writeAnswer(stdout, answer); err != nil {
		fmt.Fprintf(noAnswer, "request error: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// tlsFlags defines the flags for TLS.
func tlsFlags(flags *flag.FlagSet) (useTLS *bool, files *certs.Files) {
	useTLS, files = flags.Bool("grpc-use-tls", false, "speak TLS"), new(certs.Files)
	flags.StringVar(&files.CA, "grpc-server-ca-file", "",
		"PEM `file` of roots for the server's certificate, beside the system's")
	flags.StringVar(&files.Cert, "grpc-cert-file", "", "PEM `file` of a client certificate")
	flags.StringVar(&files.Key, "grpc-key-file", "", "PEM `file` of its key")
	return useTLS, files
}

// protectionOf returns the credentials for a connection: with TLS and the given files, or without TLS. closeFiles stops
// watching the files for changes.
func protectionOf(useTLS bool, files certs.Files, stderr io.Writer) (
	_ credentials.TransportCredentials, closeFiles func(), err error) {
	if !useTLS {
		if files != (certs.Files{}) {
			fmt.Fprintln(stderr, "ratelimit client: certificate files have no effect without -grpc-use-tls")
		}
		return insecure.NewCredentials(), func() {}, nil
	}
	files.SystemRoots = true
	store, err := certs.Open(files, nil)
	if err != nil {
		return nil, nil, err
	}
	return grpctls.Client(store), store.Close, nil
}

// writeAnswer prints an answer as a line of JSON. It removes the spaces that protojson adds at random.
func writeAnswer(w io.Writer, answer *pb.RateLimitResponse) error {
	text, err := protojson.Marshal(answer)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// writeFlags prints the flags that envoyproxy/ratelimit's client has, and all other flags that are set.
func writeFlags(w io.Writer, flags *flag.FlagSet) {
	set := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	flags.VisitAll(func(f *flag.Flag) {
		switch f.Name {
		case "descriptor_json", "format", "hits", "limit", "refund":
			if !set[f.Name] {
				return
			}
		}
		fmt.Fprintf(w, "Flag: --%s=%q\n", f.Name, f.Value)
	})
}

// flagExit returns the exit status for an error of FlagSet.Parse, which has already printed the error.
func flagExit(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	return exitUsage
}
