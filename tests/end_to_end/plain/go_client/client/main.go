// Copyright the sax authors. SPDX-License-Identifier: Apache-2.0

// A client of a cell in Go, for tests: the calls that Saxml's own Go client makes, by stubs that
// protoc's Go plugins made from sax/proto, by a gRPC that shares no code with Python's.
//
//	client --sax_root=FOLDER --cell=/sax/test COMMAND ARGUMENTS
//
// Each reply is a line of JSON; an error is one with "code" and "message", and exit status 1.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminpb "sax/proto/admin"
)

type command struct {
	least int // arguments
	run   func(ctx context.Context, admin *cellAdmin, words []string) error
}

var commands = map[string]command{
	"publish":   {4, publish},
	"unpublish": {1, unpublish},
	"list":      {0, list},
	"stats":     {0, stats},
	"wait":      {2, waitForReady},
	"watch":     {1, watchModel},
	"generate":  {2, generate},
	"stream":    {2, stream},
	"score":     {2, score},
}

func main() {
	root := flag.String("sax_root", "", "folder below which admin servers write their addresses")
	cell := flag.String("cell", "/sax/test", "the cell")
	timeout := flag.Duration("timeout", 4*time.Minute, "for the whole command")
	flag.Parse()
	chosen, known := commands[flag.Arg(0)]
	if !known || flag.NArg()-1 < chosen.least {
		fmt.Fprintf(os.Stderr, "unknown, or too few arguments: %q\n", flag.Args())
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	admin := &cellAdmin{root: *root, cell: *cell}
	defer admin.close()
	if err := chosen.run(ctx, admin, flag.Args()[1:]); err != nil {
		tell(map[string]string{
			"code": status.Code(err).String(), "message": status.Convert(err).Message(),
		})
		os.Exit(1)
	}
}

func publish(ctx context.Context, admin *cellAdmin, words []string) error {
	replicas, err := strconv.Atoi(words[3])
	if err != nil {
		return err
	}
	request := &adminpb.PublishRequest{Model: &adminpb.Model{
		ModelId:              words[0],
		ModelPath:            words[1],
		CheckpointPath:       words[2],
		RequestedNumReplicas: int32(replicas),
	}}
	return admin.call(ctx, func(client adminpb.AdminClient) error {
		_, err := client.Publish(ctx, request)
		return err
	})
}

func unpublish(ctx context.Context, admin *cellAdmin, words []string) error {
	return admin.call(ctx, func(client adminpb.AdminClient) error {
		_, err := client.Unpublish(ctx, &adminpb.UnpublishRequest{ModelId: words[0]})
		return err
	})
}

func list(ctx context.Context, admin *cellAdmin, words []string) error {
	return admin.call(ctx, func(client adminpb.AdminClient) error {
		reply, err := client.List(ctx, &adminpb.ListRequest{ModelId: first(words)})
		return told(reply, err)
	})
}

func stats(ctx context.Context, admin *cellAdmin, words []string) error {
	return admin.call(ctx, func(client adminpb.AdminClient) error {
		reply, err := client.Stats(ctx, &adminpb.StatsRequest{ModelId: first(words)})
		return told(reply, err)
	})
}

func waitForReady(ctx context.Context, admin *cellAdmin, words []string) error {
	replicas, err := strconv.Atoi(words[1])
	if err != nil {
		return err
	}
	request := &adminpb.WaitForReadyRequest{ModelId: words[0], NumReplicas: int32(replicas)}
	return admin.call(ctx, func(client adminpb.AdminClient) error {
		_, err := client.WaitForReady(ctx, request)
		return err
	})
}

// watchModel prints the set of addresses after each change, until the model is unpublished.
func watchModel(ctx context.Context, admin *cellAdmin, words []string) error {
	return watch(ctx, admin, words[0], func(reply *adminpb.WatchLocResponse, set addressSet) bool {
		result := reply.GetResult()
		tell(map[string]interface{}{
			"server":    reply.GetAdminServerId(),
			"seqno":     result.GetNextSeqno(),
			"fullset":   result.GetHasFullset(),
			"addresses": set.sorted(),
		})
		return true
	})
}

func generate(ctx context.Context, admin *cellAdmin, words []string) error {
	return answered(ctx, admin, words, func(model *languageModel) (*answer, error) {
		extra, err := extraInputs(words[2:])
		if err != nil {
			return nil, err
		}
		return model.generate(ctx, words[1], extra)
	})
}

func stream(ctx context.Context, admin *cellAdmin, words []string) error {
	return answered(ctx, admin, words, func(model *languageModel) (*answer, error) {
		extra, err := extraInputs(words[2:])
		if err != nil {
			return nil, err
		}
		return model.stream(ctx, words[1], extra)
	})
}

func score(ctx context.Context, admin *cellAdmin, words []string) error {
	return answered(ctx, admin, words, func(model *languageModel) (*answer, error) {
		return model.score(ctx, words[1], words[2:])
	})
}

// answered prints what a server of the model named first answers.
func answered(
	ctx context.Context, admin *cellAdmin, words []string,
	ask func(*languageModel) (*answer, error),
) error {
	model, err := openModel(ctx, admin, words[0])
	if err != nil {
		return err
	}
	defer model.conn.Close()
	given, err := ask(model)
	if err == nil {
		tell(given)
	}
	return err
}

func first(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// told prints a reply as protobuf's JSON.
func told(reply proto.Message, err error) error {
	if err != nil {
		return err
	}
	line, err := protojson.Marshal(reply)
	fmt.Println(string(line))
	return err
}

func tell(value interface{}) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
