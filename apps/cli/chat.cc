#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/family.h"

namespace df::cli {
namespace {

struct ChatOptions {
  FamilyOptions family;
  SamplingOptions sampling;
  std::string system;
};

// Ctrl-C as something to ask for: the signal is blocked in every thread and fetched while an answer runs.
class Interrupts {
 public:
  Interrupts() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Waits at most `ms` for one.
  bool Wait(long ms) const {
    const timespec limit = {.tv_sec = 0, .tv_nsec = ms * 1'000'000};
    return sigtimedwait(&signals_, nullptr, &limit) == SIGINT;
  }

 private:
  sigset_t signals_;
};

constexpr char kHelp[] =
    "  /variant NAME   let NAME answer from now on (the conversation goes on)\n"
    "  /variants       what is loaded\n"
    "  /system TEXT    set the system message; without TEXT: none\n"
    "  /reset          forget the conversation\n"
    "  /quit           leave (or Ctrl-D); Ctrl-C stops an answer\n";

class Chat {
 public:
  Chat(const ChatOptions& options, const Family& family, Engine& engine, const Interrupts& interrupts)
      : options_(options),
        family_(family),
        engine_(engine),
        interrupts_(interrupts),
        variant_(family.chosen),
        system_(options.system),
        is_terminal_(isatty(STDIN_FILENO) == 1) {}

  void Loop() {
    if (is_terminal_) std::cout << variant_->name << " is listening. /help tells what else can be done.\n";
    std::string line;
    while (!quit_ && ReadLine(line)) {
      if (line.empty()) continue;
      if (line.front() == '/') {
        Command(line);
      } else {
        Ask(line);
      }
    }
    if (is_terminal_ && !quit_) std::cout << "\n";
  }

 private:
  bool ReadLine(std::string& line) {
    if (is_terminal_) std::cout << variant_->name << "> " << std::flush;
    return static_cast<bool>(std::getline(std::cin, line));
  }

  void Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit") {
      quit_ = true;
    } else if (name == "/help") {
      std::cout << kHelp;
    } else if (name == "/reset") {
      history_ = Json::array();
    } else if (name == "/system") {
      system_ = argument;
    } else if (name == "/variants") {
      ListVariants();
    } else if (name == "/variant") {
      Switch(argument);
    } else {
      std::cout << "There is no " << name << "; /help lists what there is.\n";
    }
  }

  void ListVariants() const {
    for (const auto& variant : family_.store->List()) {
      std::cout << (variant == variant_ ? "* " : "  ") << variant->name << "  (" << variant->KindName() << ")\n";
    }
  }

  void Switch(const std::string& name) {
    if (auto found = family_.store->FindOrNull(name)) {
      variant_ = std::move(found);
    } else {
      std::cout << "There is no \"" << name << "\"; /variants lists what there is.\n";
    }
  }

  Json Messages() const {
    Json messages = Json::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    for (const Json& message : history_) messages.push_back(message);
    return messages;
  }

  void Ask(const std::string& question) {
    history_.push_back({{"role", "user"}, {"content", question}});
    TextRequest request;
    request.id = "chat-" + std::to_string(n_asked_++);
    request.variant = variant_;
    request.prompt = Messages();
    request.params = SamplingFor(*variant_, options_.sampling);
    Result<std::unique_ptr<TextStream>> stream = StartText(engine_, std::move(request), {});
    if (!stream.ok()) {
      history_.erase(history_.size() - 1);
      const bool too_long = IsContextLengthExceeded(stream.status());
      std::cout << "(" << stream.status().message() << (too_long ? "; /reset makes room" : "") << ")\n";
      return;
    }
    history_.push_back({{"role", "assistant"}, {"content", Show(**stream)}});
  }

  // Prints the answer as it comes; Ctrl-C ends it.
  std::string Show(TextStream& stream) {
    while (interrupts_.Wait(0)) continue;  // one from before the answer does not count
    std::string answer;
    for (;;) {
      const std::vector<TextDelta> deltas = stream.TakeAll();
      for (const TextDelta& delta : deltas) {
        std::cout << delta.text << std::flush;
        answer += delta.text;
        if (!delta.finish) continue;
        if (*delta.finish == FinishReason::kError) std::cout << "\n(" << delta.status.message() << ")";
        if (*delta.finish == FinishReason::kCancelled) std::cout << " (stopped)";
        std::cout << "\n";
        return answer;
      }
      if (interrupts_.Wait(deltas.empty() ? 5 : 0)) stream.Cancel();
    }
  }

  const ChatOptions& options_;
  const Family& family_;
  Engine& engine_;
  const Interrupts& interrupts_;
  std::shared_ptr<const Variant> variant_;
  std::string system_;
  Json history_ = Json::array();
  size_t n_asked_ = 0;
  bool is_terminal_;
  bool quit_ = false;
};

Status RunChat(const ChatOptions& options) {
  DF_ASSIGN_OR_RETURN(const Family family, LoadFamily(options.family));
  const Interrupts interrupts;  // before the engine's threads exist: they inherit the mask
  DF_ASSIGN_OR_RETURN(const auto engine, StartEngine(options.family, family));
  Chat(options, family, *engine, interrupts).Loop();
  return Status::Ok();
}

}  // namespace

void AddChat(const Command& app) {
  const Command command = app.Sub("chat", "Talk to a base and its variants");
  const auto options = std::make_shared<ChatOptions>();
  AddFamilyOptions(command, options->family);
  AddSamplingOptions(command, options->sampling);
  command.Option("--system", options->system, "The system message to begin with");
  command.Footer(std::string("In the conversation:\n") + kHelp +
                 "\nExamples:\n"
                 "  deltafold chat --model ./zen-mini-base --variant math=./math-delta --variant sql=./sql-delta\n"
                 "  printf 'Hello\\n/variant sql\\nShow all cars.\\n' | deltafold chat --model ./zen-mini-base "
                 "--variant sql=./sql-delta");
  command.OnRun([options] { return Report("chat", RunChat(*options)); });
}

}  // namespace df::cli
